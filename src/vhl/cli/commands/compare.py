"""`vhl compare`: runs side by side, and what that says."""

from __future__ import annotations

import argparse

from vhl.cli.display import comparison_table, console
from vhl.report.verdict import verdicts
from vhl.runs.compare import compare
from vhl.runs.find import find_runs


def main(arguments: argparse.Namespace) -> None:
    comparison = compare(find_runs(arguments.runs), arguments.target, arguments.last)
    console.print(comparison_table(comparison))
    for verdict in verdicts(comparison):
        console.print(f"{verdict.text}\n", markup=False, highlight=False)
