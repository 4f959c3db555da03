"""`vhl sweep`: every combination of several values."""

from __future__ import annotations

import argparse

from vhl.cli.arguments import Commands, add_command, add_live, add_running
from vhl.errors import VHLError


def add(commands: Commands) -> None:
    parser = add_command(commands, "sweep", _sweep)
    parser.add_argument(
        "settings",
        nargs="+",
        metavar="EXPERIMENT.toml | KEY=A,B,C",
        help="as for `vhl run`, with several values where wanted",
    )
    parser.add_argument(
        "--name", default="sweep", help="folder of the sweep under --runs-dir (default: sweep)"
    )
    add_running(parser)
    add_live(parser)


def _sweep(arguments: argparse.Namespace) -> None:
    """Run every combination of several values; start again to continue."""
    from vhl.cli.display import errors, say
    from vhl.cli.running import run_and_report, with_seeds
    from vhl.cli.settings import split, split_values
    from vhl.config.layers import nest, parse_value
    from vhl.experiment import Experiment
    from vhl.session.sweep import grid, name_of

    files, pairs = split(arguments.settings)
    choices = {key: [parse_value(choice) for choice in split_values(value)] for key, value in pairs}
    if "name" in choices:
        raise VHLError("The runs of a sweep are named after what differs; name the sweep with --name.")
    experiments = []
    for point in grid(choices):
        varied = {key: value for key, value in point.items() if len(choices[key]) > 1}
        layers = [nest(key, value) for key, value in point.items()]
        one = Experiment.read(*files, *layers, {"name": name_of(varied) or "only"})
        experiments += with_seeds(one, arguments.seeds)
    runs = arguments.runs_dir / arguments.name
    failed = run_and_report(experiments, runs, "report.html", arguments, resume=True)
    for name, error in failed.items():  # a learning rate too high must not cost the other runs
        say(f"{name}: {error}", errors)
    if failed:
        raise VHLError(f"{len(failed)} of {len(experiments)} runs failed: {', '.join(failed)}.")
