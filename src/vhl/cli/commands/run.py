"""`vhl run`: run an experiment, over seeds where asked."""

from __future__ import annotations

import argparse

from vhl.cli.arguments import Commands, add_command, add_live, add_running, add_settings


def add(commands: Commands) -> None:
    parser = add_command(commands, "run", _run)
    add_settings(parser)
    parser.add_argument(
        "--resume", action="store_true", help="continue a run that was cut off, or give it more rounds"
    )
    add_running(parser)
    add_live(parser)


def _run(arguments: argparse.Namespace) -> None:
    """Run an experiment."""
    from vhl.cli import settings
    from vhl.cli.running import run_and_report, with_seeds
    from vhl.session.session import default_name

    experiment = settings.read(arguments.settings)
    folder = settings.run_folder(arguments.settings) if arguments.resume else None
    runs = folder.parent if folder else arguments.runs_dir
    name = experiment.name or default_name(experiment).rpartition("-seed")[0]
    failed = run_and_report(
        with_seeds(experiment, arguments.seeds), runs, f"{name}.html", arguments, resume=arguments.resume
    )
    for error in failed.values():
        raise error
