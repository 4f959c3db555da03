"""`vhl run`: run an experiment, over seeds where asked."""

from __future__ import annotations

import argparse
import shlex
from contextlib import closing
from pathlib import Path

from rich.markup import escape

from vhl.cli import settings
from vhl.cli.display import comparison_table, console, errors, follow, making_images, percent
from vhl.experiment import Experiment
from vhl.runs.compare import compare
from vhl.runs.folder import RunFolder
from vhl.runs.session import Session, default_name


def main(arguments: argparse.Namespace) -> None:
    experiment = settings.read(arguments.settings)
    repeats = with_seeds(experiment, arguments.seeds)
    folder = settings.run_folder(arguments.settings) if arguments.resume else None
    runs = folder.parent if folder else arguments.runs_dir
    folders = [run(e, runs, arguments.resume, arguments.data_dir) for e in repeats]
    if len(folders) > 1:
        console.print(comparison_table(compare(folders)))


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


def run(experiment: Experiment, runs: Path, resume: bool, data_dir: Path | None) -> RunFolder:
    """Run one experiment in its folder and follow it on the terminal."""
    session = Session(
        experiment,
        runs,
        resume=resume,
        data_dir=data_dir,
        on_progress=making_images(),
        on_note=lambda note: errors.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True),
    )
    title = experiment.name or default_name(experiment)
    try:
        with closing(iter(session)) as records:  # closed at once, it saves what was done before we go on
            follow(records, experiment.rounds, title)
    except KeyboardInterrupt:
        if not session.folder.exists:
            raise
        path = shlex.quote(str(session.folder.path))
        raise KeyboardInterrupt(f"`vhl run {path} --resume` continues.") from None
    reached = compare([session.folder]).rows[0].results[0]
    console.print(
        f"[bold]{escape(title)}[/]: best {percent(reached.best)}, "
        f"mean of the last 10 % {percent(reached.final)}; in {escape(str(session.folder.path))}",
        soft_wrap=True,
    )
    return session.folder
