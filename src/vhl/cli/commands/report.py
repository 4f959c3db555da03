"""`vhl report`: runs as a page to look at."""

from __future__ import annotations

import argparse
from pathlib import Path

from vhl.cli.arguments import Commands, add_command, add_compared, add_data_dir


def add(commands: Commands) -> None:
    parser = add_command(commands, "report", _report)
    add_compared(parser)
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"), help="default: report.html")
    parser.add_argument("--figures", type=Path, metavar="DIR", help="write every figure as PNG and SVG too")
    parser.add_argument(
        "--show-natural", action="store_true", help="show natural training images too, which may be private"
    )
    add_data_dir(parser)


def _report(arguments: argparse.Namespace) -> None:
    """Make a page of runs: figures, tables, verdict."""
    from vhl.cli.display import say
    from vhl.data.sources.base import data_directory
    from vhl.report.write import write_report
    from vhl.runs.find import find_runs

    found = write_report(
        find_runs(arguments.runs),
        arguments.output,
        target=arguments.target,
        last=arguments.last,
        natural_from=data_directory(arguments.data_dir) if arguments.show_natural else None,
    )
    say(f"written to {arguments.output}")
    if arguments.figures is not None:
        from vhl.report.measures import files
        from vhl.report.paint import write_figures  # Matplotlib takes a second to import

        for file in write_figures(files(found["figures"]), arguments.figures):
            say(f"written to {file}")
