"""`vhl sweep`: every combination of several values."""

from __future__ import annotations

import argparse

from vhl.cli import settings
from vhl.cli.commands.run import with_seeds
from vhl.cli.display import comparison_table, console, errors
from vhl.cli.running import live, report, run_all
from vhl.cli.values import split_values
from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.runs.compare import compare
from vhl.session.sweep import grid, name_of


def main(arguments: argparse.Namespace) -> None:
    files, pairs = settings.split(arguments.settings)
    choices = {key: [settings.parse_value(v) for v in split_values(value)] for key, value in pairs}
    if "name" in choices:
        raise VHLError("The runs of a sweep are named after what differs; name the sweep with --name.")
    experiments = []
    for point in grid(choices):
        base = Experiment.read(*files, *[settings.nest(key, value) for key, value in point.items()])
        varied = {key: value for key, value in point.items() if len(choices[key]) > 1}
        experiments += with_seeds(base.with_(name=name_of(varied) or "only"), arguments.seeds)
    runs = arguments.runs_dir / arguments.name
    with live(experiments, runs, arguments):
        folders, failed = run_all(
            experiments,
            runs,
            resume=True,
            data_dir=arguments.data_dir,
            at_once=arguments.at_once,
            track=arguments.track,
        )
    for name, error in failed.items():  # a learning rate too high must not cost the other runs
        errors.print(f"{name}: {error}", markup=False, soft_wrap=True)
    if folders:
        console.print(comparison_table(compare(folders)))
    report(folders, runs / "report.html")
    if failed:
        raise VHLError(f"{len(failed)} of {len(experiments)} runs failed: {', '.join(failed)}.")
