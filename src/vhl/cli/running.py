"""Running experiments and following them on the terminal, for every command that does so."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from rich.markup import escape

from vhl.cli.display import Board, comparison_table, console, making_images, percent, say
from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.report.content import content
from vhl.report.serve import serving
from vhl.report.write import write_report
from vhl.rounds.local import Shared
from vhl.runs.compare import compare
from vhl.runs.folder import RunFolder
from vhl.runs.record import Record
from vhl.session.session import Session, default_name
from vhl.session.together import together
from vhl.session.trackers.base import named
from vhl.text import first_of
from vhl.training.precision import choose_device
from vhl.training.threads import choose_threads

_SHOWN = 5  # classes that a note names
_ON_A_GPU = 4  # runs side by side; each keeps its own captured steps in the GPU's memory


def with_seeds(experiment: Experiment, seeds: list[int] | None) -> list[Experiment]:
    """The experiment once for each seed; the data's seed stays, so that every run solves the same problem."""
    if seeds is None:
        return [experiment]
    repeats = []
    for seed in seeds:
        same = dict.fromkeys(("model", "sampling", "batches"), seed)
        name = f"{experiment.name}-seed{seed}" if experiment.name else ""
        repeats.append(experiment.with_(seeds=same, name=name))
    return repeats


def run_and_report(
    experiments: Sequence[Experiment], runs: Path, page: str, arguments: argparse.Namespace, *, resume: bool
) -> dict[str, VHLError]:
    """Run the experiments, compare them and write their page; says by name what went wrong."""
    with _live(experiments, runs, arguments):
        folders, failed = run_all(
            experiments,
            runs,
            resume=resume,
            data_dir=arguments.data_dir,
            at_once=arguments.at_once,
            track=arguments.track,
        )
    if folders and len(experiments) > 1:
        console.print(comparison_table(compare(folders)))
    if folders:
        file = folders[0].path / "report.html" if len(folders) == 1 else runs / page
        write_report(folders, file)
        say(f"report: {file}")
    return failed


def run_all(
    experiments: Sequence[Experiment],
    runs: Path,
    *,
    resume: bool,
    data_dir: Path | None,
    at_once: int | None,
    track: Sequence[str] = (),
    until: float | None = None,
    on_end: Callable[[RunFolder], object] = lambda run: None,
) -> tuple[list[RunFolder], dict[str, VHLError]]:
    """Run the experiments; says which runs were completed, and by name what went wrong.

    ``track`` names the trackers that follow each of them.
    At the time ``until``, by the monotonic clock, all that is running is saved and stopped.
    """
    choose_threads()
    shared = Shared()
    at_once = at_once or _usually_at_once(experiments)
    board = Board(at_once)
    sessions = [
        Session(
            experiment,
            runs,
            resume=resume,
            data_dir=data_dir,
            on_progress=making_images(),
            on_note=board.note,
            on_start=lambda experiment, done: board.begin(experiment.name, experiment.rounds, done),
            shared=shared,
            trackers=named(track),
        )
        for experiment in experiments
    ]
    folders: list[RunFolder] = []
    failed: dict[str, VHLError] = {}
    try:
        with board, closing(together(sessions, at_once)) as events:
            for session, event in events:
                name = session.experiment.name
                if event is None:
                    board.end(name)
                    _say_what_was_reached(session, board)
                    folders.append(session.folder)
                    on_end(session.folder)
                elif isinstance(event, VHLError):
                    board.end(name)
                    failed[name] = event
                else:
                    board.show(name, event)
                if until is not None and time.monotonic() >= until:
                    break
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_how_to_continue(sessions, resume, track)) from None
    order = [session.folder for session in sessions]
    return sorted(folders, key=order.index), failed


def _usually_at_once(experiments: Sequence[Experiment]) -> int:
    on_gpu = choose_device(experiments[0].device).type == "cuda"
    return min(_ON_A_GPU, len(experiments)) if on_gpu else 1


@contextmanager
def _live(experiments: Sequence[Experiment], runs: Path, arguments: argparse.Namespace) -> Iterator[None]:
    """With ``--live`` the runs' page is served while they train."""
    if not arguments.live:
        yield
        return
    folders = [RunFolder(runs / (e.name or default_name(e))) for e in experiments]

    def begun() -> dict[str, Any]:
        return content([folder for folder in folders if folder.exists])

    with serving(begun, arguments.host, arguments.port) as server:
        say(f"Open {server.url} in a browser to watch.")
        yield


def _say_what_was_reached(session: Session, board: Board) -> None:
    (row,) = compare([session.folder]).rows
    reached = row.results[0]
    console.print(
        f"[bold]{escape(session.experiment.name)}[/]: best {percent(reached.best)}, "
        f"mean of the last 10 % {percent(reached.final)}; in {escape(str(session.folder.path))}",
        soft_wrap=True,
    )
    if missed := _missed_classes(row.records[0], session.folder.data()["classes"]):
        board.note(f"in the last round no test image was recognised of: {missed}.")


def _missed_classes(records: Sequence[Record], classes: Sequence[str]) -> str:
    """What a mean over all images hides; not where most are missed, for then it is low enough to tell."""
    found = next((r.per_class for r in reversed(records) if r.per_class is not None), [])
    missed = [name for name, share in zip(classes, found, strict=False) if share == 0]
    if 2 * len(missed) >= len(found):
        return ""
    return first_of(missed, _SHOWN, "others")


def _how_to_continue(sessions: Sequence[Session], resumed: bool, track: Sequence[str]) -> str:
    """How to go on with what was stopped; nothing where none had begun."""
    begun = [session for session in sessions if session.folder.exists]
    if len(sessions) == 1 and begun:
        tracked = f" --track {','.join(track)}" if track else ""
        return f"`vhl run {shlex.quote(str(begun[0].folder.path))} --resume{tracked}` continues."
    return f"The same command {'' if resumed else 'with --resume '}continues." if begun else ""
