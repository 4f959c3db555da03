"""`vhl run`: run an experiment, over seeds where asked."""

from __future__ import annotations

import argparse

from vhl.cli import settings
from vhl.cli.display import comparison_table, console
from vhl.cli.running import live, report, run_all
from vhl.experiment import Experiment
from vhl.runs.compare import compare
from vhl.session.session import default_name


def main(arguments: argparse.Namespace) -> None:
    experiment = settings.read(arguments.settings)
    folder = settings.run_folder(arguments.settings) if arguments.resume else None
    runs = folder.parent if folder else arguments.runs_dir
    experiments = with_seeds(experiment, arguments.seeds)
    with live(experiments, runs, arguments):
        folders, failed = run_all(
            experiments,
            runs,
            resume=arguments.resume,
            data_dir=arguments.data_dir,
            at_once=arguments.at_once,
            track=arguments.track,
        )
    if len(folders) > 1:
        console.print(comparison_table(compare(folders)))
    name = experiment.name or default_name(experiment).rpartition("-seed")[0]
    report(folders, runs / f"{name}.html")
    for error in failed.values():
        raise error


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
