"""`vhl watch`: the page of runs that are still going on."""

from __future__ import annotations

import argparse
import threading

from vhl.cli.display import console
from vhl.report.content import content
from vhl.report.serve import serving
from vhl.runs.find import find_runs


def main(arguments: argparse.Namespace) -> None:
    find_runs(arguments.runs)  # refuse what holds no run before anything is served
    with serving(lambda: content(find_runs(arguments.runs)), arguments.host, arguments.port) as server:
        console.print(f"Open {server.url} in a browser; Ctrl-C ends it.", markup=False, soft_wrap=True)
        threading.Event().wait()
