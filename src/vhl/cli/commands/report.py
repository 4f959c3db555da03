"""`vhl report`: runs as a page to look at."""

from __future__ import annotations

import argparse

from vhl.cli.display import console
from vhl.data.sources.base import data_directory
from vhl.report.write import write_report
from vhl.runs.find import find_runs


def main(arguments: argparse.Namespace) -> None:
    found = write_report(
        find_runs(arguments.runs),
        arguments.output,
        target=arguments.target,
        last=arguments.last,
        natural_from=data_directory(arguments.data_dir) if arguments.show_natural else None,
    )
    console.print(f"written to {arguments.output}", markup=False, soft_wrap=True)
    if arguments.figures is not None:
        from vhl.report.figures import write_figures  # Matplotlib takes a second to import

        for file in write_figures(found, arguments.figures):
            console.print(f"written to {file}", markup=False, soft_wrap=True)
