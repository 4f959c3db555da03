"""`vhl compare`: runs side by side."""

from __future__ import annotations

import argparse

from vhl.cli.display import comparison_table, console
from vhl.errors import VHLError
from vhl.runs.compare import compare
from vhl.runs.folder import find_runs


def main(arguments: argparse.Namespace) -> None:
    target = arguments.target
    if target is not None and not 0 < target <= 100:
        raise VHLError(f"--target {target} is no accuracy; give it in percent, above 0 and up to 100.")
    comparison = compare(find_runs(arguments.runs), None if target is None else target / 100)
    console.print(comparison_table(comparison))
