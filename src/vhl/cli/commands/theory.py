"""`vhl theory`: the terms of the paper's theorem for a run's models."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from vhl.cli.arguments import Commands, add_command, add_data_dir, count
from vhl.errors import VHLError

if TYPE_CHECKING:
    from vhl.analysis.theory import Terms
    from vhl.experiment import Experiment
    from vhl.runs.folder import RunFolder

_COLUMNS = (
    "round",
    "accuracy",
    "merged",
    "margin\nnatural",
    "margin\nvirtual",
    "margin\ntrained",
    "distance\n(floor)",
    "of length 1\n(floor)",
    "lower\nbound",
)


def add(commands: Commands) -> None:
    parser = add_command(commands, "theory", _theory)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument(
        "--round",
        dest="rounds",
        type=count,
        action="append",
        metavar="R",
        help="of this kept round, and again for more (default: all of keep_at, and the last)",
    )
    parser.add_argument(
        "--virtual",
        metavar="GENERATOR",
        help="virtual data to measure against, or a run that was trained on some (default: the run's own)",
    )
    parser.add_argument(
        "--results", type=Path, help="keep the run's record, with the terms, in this folder of records too"
    )
    add_data_dir(parser)


def _theory(arguments: argparse.Namespace) -> None:
    """Measure every term of the paper's theorem on a run's models."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from vhl.analysis.runs import measure_run
    from vhl.cli.display import console
    from vhl.paper.records import Records
    from vhl.runs.folder import RunFolder

    run = RunFolder(arguments.run)
    against = None if arguments.virtual is None else _with_virtual_data(run, arguments.virtual)
    found = measure_run(run, arguments.rounds, against, arguments.data_dir)
    if arguments.results is not None and not Records(run.path.parent, arguments.results).keep(run):
        raise VHLError(f"{arguments.results} has a longer record of {run.path}, so the terms are not in it.")
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in _COLUMNS:
        table.add_column(heading, justify="right")
    for number, terms in found.items():
        table.add_row(str(number), *_cells(terms))
    console.print(table)
    console.print(_explanation(list(found.values())))


def _with_virtual_data(run: RunFolder, spec: str) -> Experiment:
    """The run's experiment with a generator of this name, or another run's, which has all of its own."""
    from vhl.config.registry import build
    from vhl.runs.folder import RunFolder
    from vhl.virtual.base import Generator

    other = RunFolder(spec)
    if not other.exists:
        if "/" in spec and ":" not in spec:
            raise VHLError(f"--virtual {spec} is no run folder; name one, or a generator such as noise.")
        return run.experiment().model_copy(update={"virtual": build(Generator, "--virtual", spec)})
    if not other.experiment().objective.uses_virtual:
        raise VHLError(f"--virtual {spec} was trained without virtual data; name a run that has some.")
    return other.experiment()


def _cells(terms: Terms) -> list[str]:
    from vhl.cli.display import percent

    margins = (terms.margin_natural, terms.margin_virtual, terms.margin_virtual_train)
    return [
        percent(terms.accuracy),
        percent(terms.merged_accuracy),
        *(f"{margin:.3g}" for margin in margins),
        f"{terms.distance:.3g} ({terms.distance_floor:.3g})",
        f"{terms.normalised_distance:.3f} ({terms.normalised_floor:.3f})",
        f"{terms.lower_bound:.3g}",
    ]


def _explanation(every: list[Terms]) -> str:
    vacuous = sum(terms.vacuous for terms in every)
    bound = "nowhere vacuous" if not vacuous else "vacuous" if vacuous == len(every) else "vacuous in part"
    return (
        "The margin on natural data is at least the lower bound, trained − |virtual − trained| − distance: "
        f"it is {bound}. docs/theory.md explains the terms."
    )
