"""Where features lie: t-SNE of test and virtual samples in the models of clients or of the server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from torch import Tensor

from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.models.files import read_tensors
from vhl.paper.evidence import Choice, Evidence, identity
from vhl.paper.figures.choosing import choose, described
from vhl.paper.row import Row
from vhl.paper.rows import rows
from vhl.paper.theory import METHODS
from vhl.report.features import points
from vhl.report.figure import Figure, Points
from vhl.runs.folder import RunFolder

Whose = Literal["clients", "server"]
POINTS = 1_200
"""Samples in a panel; more hide each other, and t-SNE takes a minute for 2,000."""
_CLIENTS = 3
_READ = "colour: class, shape: model, ring: virtual"
_NOT_RUN = Points(note="not run")


@dataclass(frozen=True)
class Saved:
    """A run folder and the rounds whose features it has."""

    folder: RunFolder
    experiment: Experiment
    rounds: tuple[int, ...]

    @classmethod
    def all(cls, runs: Path) -> Iterator[Saved]:
        for place in sorted(runs.glob("**/features")):
            folder = RunFolder(place.parent)
            if folder.exists:
                experiment = folder.experiment()
                # Other rounds may have a file too, but no features in it.
                rounds = sorted(r for r in experiment.features_at if _file(folder, r).is_file())
                if rounds:
                    yield cls(folder, experiment, tuple(rounds))

    def tensors(self, round_: int) -> dict[str, Tensor]:
        return read_tensors(_file(self.folder, round_))[0]


def _file(folder: RunFolder, round_: int) -> Path:
    return folder.path / "features" / f"round-{round_:06d}.safetensors"


def features_of(whose: Whose, evidence: Evidence, runs: Path) -> Figure:
    """A row of panels for each method, a column for each round that the paper shows, or the nearest saved."""
    saved = list(Saved.all(runs))

    def find(row: Row, choice: Choice) -> Saved | None:
        own = identity(choice.experiment(row))
        same = [one for one in saved if identity(one.experiment) == own]
        return max(same, key=lambda one: (one.rounds[-1], len(one.rounds)), default=None)

    def size(row: Row, choice: Choice) -> tuple[int, int]:
        found = find(row, choice)
        return (0, 0) if found is None else (found.rounds[-1], len(found.rounds))

    chosen = choose(METHODS, dict.fromkeys(Choice.of(one.experiment) for one in saved), size)
    if not chosen:
        raise VHLError(
            f"No run in {runs} has features to draw; `vhl paper run {' '.join(METHODS)}` makes them."
        )
    found = {name: one for name, choice in chosen.items() if (one := find(rows()[name], choice))}
    return _figure(whose, found, described(chosen, METHODS))


def _figure(whose: Whose, found: Mapping[str, Saved], about: str) -> Figure:
    """Columns in which no method has a round are left out."""
    wanted = {name: rows()[name].settings["features_at"] for name in found}
    rounds = {name: nearest(one.rounds, wanted[name]) for name, one in found.items()}
    columns = [i for i in range(max(map(len, rounds.values()))) if any(own[i] for own in rounds.values())]
    panels = []
    for name, label in METHODS.items():
        shown = [rounds[name][column] if name in found else None for column in columns]
        own = [_panel(whose, round_, found[name]) if round_ else _NOT_RUN for round_ in shown]
        panels += [replace(own[0], y=label), *own[1:]]
    models = {"clients": "clients' models", "server": "the server's model"}
    return Figure(
        name=f"features-{whose}",
        title=f"Features of CIFAR-10 in {models[whose]}",
        subtitle=f"t-SNE of {POINTS:,} samples or fewer, each panel by itself; {_READ}; {about}",
        panels=panels,
        across=len(columns),
    )


def _panel(whose: Whose, round_: int, saved: Saved) -> Points:
    models = ["server"]
    if whose == "clients":
        tensors = saved.tensors(round_)
        clients = [f"client{client}" for client in tensors["clients"].tolist()]
        models = [client for client in clients if f"{client}.test.features" in tensors][:_CLIENTS]
    file, classes = _file(saved.folder, round_), saved.folder.data()["classes"]
    return points(file, classes, f"round {round_}", models, POINTS)


def nearest(saved: Sequence[int], wanted: Sequence[int]) -> list[int | None]:
    """For each wanted round the nearest saved one, of those that are nearest to it and to no other.

    >>> nearest([10, 100, 250], [10, 100, 300, 1000])
    [10, 100, 250, None]
    >>> nearest([300], [10, 100, 300, 1000])
    [None, None, 300, None]
    """
    own: dict[int, list[int]] = {wish: [] for wish in wanted}
    for round_ in saved:
        own[min(wanted, key=lambda wish: abs(round_ - wish))].append(round_)
    return [min(own[wish], key=lambda round_: abs(round_ - wish), default=None) for wish in wanted]
