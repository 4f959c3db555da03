"""`vhl paper`: the paper's rows, run here, and its tables and figures with our numbers."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from vhl.cli.arguments import Commands, add_command, add_group, add_running, count
from vhl.errors import VHLError

if TYPE_CHECKING:
    from vhl.paper.evidence import Evidence
    from vhl.paper.row import Row

_ROWS = "rows: a name, the beginning of one (cifar10, further/naive), or a pattern ('*/fedavg*')"


def add(commands: Commands) -> None:
    actions = add_group(commands, "paper", "repeat the paper: its rows, tables and figures")
    list_ = add_command(actions, "list", _list)
    list_.add_argument("rows", nargs="*", metavar="ROW", help=_ROWS)
    run = add_command(actions, "run", _run)
    _add_run(run)
    table = add_command(actions, "table", _table)
    table.add_argument("name", nargs="?", metavar="TABLE", help="such as cifar10 or further (default: all)")
    table.add_argument("--latex", action="store_true", help="as LaTeX (default: Markdown)")
    table.add_argument(
        "--into", type=Path, metavar="FILE", help="renew the tables and verdicts in this document"
    )
    figure = add_command(actions, "figure", _figure)
    figure.add_argument(
        "name", metavar="FIGURE", help="convergence-cifar10, main, drift, ablation, features-clients, ..."
    )
    figure.add_argument("-o", "--output", type=Path, help="PNG, SVG or PDF file (default: FIGURE.png)")
    figure.add_argument(
        "--runs",
        type=Path,
        default=Path("runs/paper"),
        help="run folders, for features (default: %(default)s)",
    )
    for action in (list_, run, table, figure):
        action.add_argument(
            "--results",
            type=Path,
            default=Path("results"),
            help="where records of runs lie (default: %(default)s)",
        )


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rows", nargs="+", metavar="ROW", help=_ROWS)
    parser.add_argument("--rounds", type=count, help="rounds (default: the paper's)")
    parser.add_argument(
        "--budget",
        type=_minutes,
        metavar="MINUTES",
        help="stop after the round that is under way then, with everything saved",
    )
    parser.add_argument(
        "--profile",
        choices=("paper", "release"),
        default="paper",
        help="see `vhl help profile` (default: paper)",
    )
    parser.add_argument(
        "--virtual",
        default="stylegan",
        metavar="GENERATOR",
        help="virtual data of rows that have the paper's usual ones (default: stylegan)",
    )
    add_running(parser, runs_dir="runs/paper")


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = -1.0
    if not 0 <= minutes < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of minutes")
    return minutes


def _list(arguments: argparse.Namespace) -> None:
    """Every row of every table, and what of it was measured."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from vhl.cli.display import console, short
    from vhl.paper.evidence import Evidence
    from vhl.paper.queue import cost, select
    from vhl.paper.rows import TABLES

    evidence = Evidence.read(arguments.results)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("row", "paper\n%", "learning\nrate", "rounds", "images\n(ResNet-18)", "measured here"):
        table.add_column(heading, justify="left" if heading in ("row", "measured here") else "right")
    for row in select(arguments.rows or TABLES):
        table.add_row(
            row.name,
            "–" if row.accuracy is None else f"{row.accuracy:.2f}",
            f"{row.settings['training']['lr']:g}",
            str(row.settings["rounds"]),
            short(cost(row), ""),
            _state(row, evidence),
        )
    console.print(table)


def _state(row: Row, evidence: Evidence) -> str:
    from vhl.paper.evidence import generator
    from vhl.paper.lines import lines

    found = []
    for line in lines(row, evidence):
        seeds = f"{len(line.runs)} seed{'s' if len(line.runs) > 1 else ''}"
        chosen = ", ".join([line.choice.profile, generator(line.experiment)]).removesuffix(", –")
        found.append(f"{line.rounds} rounds, {seeds} ({chosen})")
    return "; ".join(found)


def _run(arguments: argparse.Namespace) -> None:
    """Run rows that are not measured yet; start again to continue."""
    from vhl.cli.display import errors, say
    from vhl.cli.running import run_all
    from vhl.paper.evidence import Evidence
    from vhl.paper.queue import Request, queue, select
    from vhl.paper.records import Records

    until = None if arguments.budget is None else time.monotonic() + 60 * arguments.budget
    request = Request(
        select(arguments.rows),
        arguments.profile,
        arguments.virtual,
        arguments.rounds,
        arguments.seeds or [0],
    )
    kept = Records(arguments.runs_dir, arguments.results)
    waiting = [e for e in queue(request, Evidence.read(arguments.results)) if not kept.has(e)]
    if not waiting:
        say(f"Nothing is left to run; the records are in {arguments.results}.")
        return
    try:
        _, failed = run_all(
            waiting,
            arguments.runs_dir,
            resume=True,
            data_dir=arguments.data_dir,
            at_once=arguments.at_once,
            track=arguments.track,
            until=until,
            on_end=kept.keep,
        )
    finally:  # what a budget or a person stopped counts too, as far as it came
        left = [experiment for experiment in waiting if not kept.has(experiment)]
    for name, error in failed.items():
        say(f"{name}: {error}", errors)
    if len(left) > len(failed):
        runs = f"{len(left) - len(failed)} of {len(waiting)} runs"
        say(f"The budget is used up; {runs} are left: the same command continues.")
    if failed:
        raise VHLError(f"{len(failed)} of {len(waiting)} runs failed: {', '.join(failed)}.")


def _table(arguments: argparse.Namespace) -> None:
    """The paper's tables with our numbers beside its own."""
    from vhl.cli.display import errors, say
    from vhl.config.registry import suggest
    from vhl.paper.document import refresh
    from vhl.paper.evidence import Evidence
    from vhl.paper.rows import TABLES
    from vhl.paper.table import every_table

    if arguments.into is not None and (arguments.name is not None or arguments.latex):
        raise VHLError("--into renews all parts of a document, as Markdown; leave TABLE and --latex away.")
    if arguments.name is not None and arguments.name not in TABLES:
        raise VHLError(f"The paper has no table {arguments.name!r}{suggest(arguments.name, TABLES)}")
    evidence = Evidence.read(arguments.results)
    if arguments.into is not None:
        refresh(arguments.into, evidence)
        return
    if not evidence:
        say(f"note: there are no records in {arguments.results}; --results names another folder.", errors)
    for table in every_table(evidence, [arguments.name] if arguments.name else []):
        text = table.latex() if arguments.latex else f"## {TABLES[table.name]}\n\n{table.markdown()}"
        print(text)  # noqa: T201 - as it is: rich would fold lines


def _figure(arguments: argparse.Namespace) -> None:
    """The paper's figures from our numbers."""
    from vhl.cli.display import say
    from vhl.paper.evidence import Evidence
    from vhl.paper.figures import draw

    output = arguments.output or Path(f"{arguments.name}.png")
    draw(arguments.name, Evidence.read(arguments.results), arguments.runs, output)
    say(f"written to {output}")
