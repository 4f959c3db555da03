"""`vhl watch`: the page of runs that are still going on."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

from vhl.cli.arguments import Commands, add_command, add_server


def add(commands: Commands) -> None:
    parser = add_command(commands, "watch", _watch)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    add_server(parser)


def _watch(arguments: argparse.Namespace) -> None:
    """Show the page of runs in a browser while they train."""
    from vhl.cli.display import say
    from vhl.report.content import content
    from vhl.report.serve import serving
    from vhl.runs.find import find_runs

    find_runs(arguments.runs)  # refuse what holds no run before anything is served
    with serving(lambda: content(find_runs(arguments.runs)), arguments.host, arguments.port) as server:
        say(f"Open {server.url} in a browser; Ctrl-C ends it.")
        threading.Event().wait()
