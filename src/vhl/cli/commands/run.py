"""`vhl run`: run an experiment, over seeds where asked."""

from __future__ import annotations

import argparse
from pathlib import Path

from vhl.cli import settings
from vhl.cli.display import comparison_table, console, errors, follow, percent
from vhl.experiment import Experiment
from vhl.runs.compare import compare
from vhl.runs.folder import RunFolder
from vhl.runs.session import Session, default_name


def main(arguments: argparse.Namespace) -> None:
    experiment = settings.read(arguments.settings)
    repeats = with_seeds(experiment, arguments.seeds)
    folders = [run(e, arguments.runs_dir, arguments.resume, arguments.data_dir) for e in repeats]
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
        on_note=lambda note: errors.print(f"[yellow]note:[/] {note}"),
    )
    title = experiment.name or default_name(experiment)
    try:
        follow(session, experiment.rounds, title)
    except KeyboardInterrupt:
        errors.print(f"\nStopped; `vhl run {session.folder.path} --resume` continues.", soft_wrap=True)
        raise
    reached = compare([session.folder]).rows[0].results[0]
    console.print(
        f"[bold]{title}[/]: best {percent(reached.best)}, mean of the last 10 % {percent(reached.final)}; "
        f"in {session.folder.path}",
        soft_wrap=True,
    )
    return session.folder
