"""`vhl compare`: runs side by side."""

from __future__ import annotations

import argparse

from vhl.cli.display import comparison_table, console
from vhl.runs.compare import compare
from vhl.runs.folder import find_runs


def main(arguments: argparse.Namespace) -> None:
    comparison = compare(find_runs(arguments.runs), arguments.target)
    console.print(comparison_table(comparison))
