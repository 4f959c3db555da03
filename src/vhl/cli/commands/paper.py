"""`vhl paper`: the paper's rows, run here, and its tables and figures with our numbers."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from vhl.cli.display import console, errors, short
from vhl.cli.running import run_all
from vhl.config.registry import suggest
from vhl.errors import VHLError
from vhl.paper.document import refresh
from vhl.paper.evidence import Evidence, generator
from vhl.paper.lines import lines
from vhl.paper.queue import Request, cost, queue, select
from vhl.paper.records import Records
from vhl.paper.row import Row
from vhl.paper.rows import TABLES
from vhl.paper.table import every_table


def main(arguments: argparse.Namespace) -> None:
    {"list": _list, "run": _run, "table": _table, "figure": _figure}[arguments.action](arguments)


def _list(arguments: argparse.Namespace) -> None:
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
    found = []
    for line in lines(row, evidence):
        seeds = f"{len(line.runs)} seed{'s' if len(line.runs) > 1 else ''}"
        chosen = ", ".join([line.choice.profile, generator(line.experiment)]).removesuffix(", –")
        found.append(f"{line.rounds} rounds, {seeds} ({chosen})")
    return "; ".join(found)


def _run(arguments: argparse.Namespace) -> None:
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
        done = f"Nothing is left to run; the records are in {arguments.results}."
        console.print(done, markup=False, soft_wrap=True)
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
        errors.print(f"{name}: {error}", markup=False, soft_wrap=True)
    if len(left) > len(failed):
        runs = f"{len(left) - len(failed)} of {len(waiting)} runs"
        console.print(f"The budget is used up; {runs} are left: the same command continues.")
    if failed:
        raise VHLError(f"{len(failed)} of {len(waiting)} runs failed: {', '.join(failed)}.")


def _table(arguments: argparse.Namespace) -> None:
    if arguments.into is not None and (arguments.name is not None or arguments.latex):
        raise VHLError("--into renews all parts of a document, as Markdown; leave TABLE and --latex away.")
    if arguments.name is not None and arguments.name not in TABLES:
        raise VHLError(f"The paper has no table {arguments.name!r}{suggest(arguments.name, TABLES)}")
    evidence = Evidence.read(arguments.results)
    if arguments.into is not None:
        refresh(arguments.into, evidence)
        return
    if not evidence:
        note = f"note: there are no records in {arguments.results}; --results names another folder."
        errors.print(note, markup=False, soft_wrap=True)
    for table in every_table(evidence, [arguments.name] if arguments.name else []):
        text = table.latex() if arguments.latex else f"## {TABLES[table.name]}\n\n{table.markdown()}"
        print(text)  # noqa: T201 - as it is: rich would fold lines


def _figure(arguments: argparse.Namespace) -> None:
    from vhl.paper.figures import draw  # Matplotlib takes a second to import

    output = arguments.output or Path(f"{arguments.name}.png")
    draw(arguments.name, Evidence.read(arguments.results), arguments.runs, output)
    console.print(f"written to {output}", markup=False, soft_wrap=True)
