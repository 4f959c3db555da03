"""Where features lie: t-SNE of test and virtual samples in the models of clients or of the server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from torch import Tensor

from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.models.files import read_tensors
from vhl.paper.evidence import Choice, Evidence, identity
from vhl.paper.figures.choosing import choose, described
from vhl.paper.row import Row
from vhl.paper.rows import rows
from vhl.paper.theory import METHODS
from vhl.report.embedding import embed
from vhl.report.figures.style import CLASSES, TEXT, add_legend, blank, say
from vhl.runs.folder import RunFolder

Whose = Literal["clients", "server"]
POINTS = 1_200
"""Samples in a panel; more hide each other, and t-SNE takes a minute for 2,000."""
_MARKERS = ("o", "^", "s")


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


@dataclass(frozen=True)
class Group:
    """Samples of one kind in one model."""

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    marker: str
    virtual: bool


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
    wanted = {name: rows()[name].settings["features_at"] for name in found}
    rounds = {name: nearest(one.rounds, wanted[name]) for name, one in found.items()}
    columns = [i for i in range(max(map(len, rounds.values()))) if any(own[i] for own in rounds.values())]
    models = {"clients": "clients' models", "server": "the server's model"}
    figure, places = blank(
        f"Features of CIFAR-10 in {models[whose]}",
        f"t-SNE of {POINTS:,} samples or fewer, each panel by itself; {about}",
        (len(METHODS), len(columns)),
        (2.6 * len(columns) + 2, 2.7 * len(METHODS) + 0.6),
    )
    for place, axes in enumerate(places):
        name, column = list(METHODS)[place // len(columns)], place % len(columns)
        axes.set(xticks=[], yticks=[], box_aspect=1)
        if column == 0:
            axes.set_ylabel(METHODS[name], fontsize=TEXT)
        round_ = rounds[name][columns[column]] if name in found else None
        if round_ is None:
            say(axes, "not run")
        else:
            _fill(axes, whose, round_, found[name].tensors(round_))
    classes = next(iter(found.values())).folder.data()["classes"]
    add_legend(places, _legend(whose, classes))
    return figure


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


def _fill(axes: Axes, whose: Whose, round_: int, tensors: Mapping[str, Tensor]) -> None:
    models = ["server"]
    axes.set_title(f"round {round_}", fontsize=TEXT)
    if whose == "clients":
        clients = [c for c in tensors["clients"].tolist() if f"client{c}.test.features" in tensors]
        models = [f"client{client}" for client in clients]
        axes.set_title(f"round {round_} (clients {', '.join(map(str, clients))})", fontsize=TEXT)
    groups = _groups(tensors, models)
    values = np.concatenate([group.features for group in groups])
    if len(values) < 2:
        say(axes, "diverged")
        return
    points, start = embed(values), 0
    for group in groups:
        x, y = points[start : start + len(group.labels)].T
        start += len(group.labels)
        colours = [CLASSES[label % len(CLASSES)] for label in group.labels]
        axes.scatter(x, y, s=5, c=colours, marker=group.marker, linewidths=0, zorder=2)
        if group.virtual:
            rings = axes.scatter(x, y, s=26, facecolors="none", edgecolors="0.4", linewidths=0.5, zorder=1)
            rings.set_linestyle("dotted")


def _groups(tensors: Mapping[str, Tensor], models: Sequence[str]) -> list[Group]:
    """Some test and virtual samples in each model, the same in all; what is not finite is left out."""
    kinds = [kind for kind in ("test", "virtual") if f"{models[0]}.{kind}.features" in tensors]
    share = POINTS // (len(models) * len(kinds))
    groups = []
    for model, marker in zip(models, _MARKERS, strict=False):
        for kind in kinds:
            values, labels = (tensors[f"{model}.{kind}.{what}"].numpy() for what in ("features", "labels"))
            finite = np.flatnonzero(np.isfinite(values).all(1))
            kept = np.random.default_rng(0).permutation(finite)[:share]
            groups.append(Group(values[kept], labels[kept], marker, kind == "virtual"))
    return groups


def _legend(whose: Whose, classes: Sequence[str]) -> list[Line2D]:
    def mark(label: str, marker: str, colour: str, size: float = 5) -> Line2D:
        return Line2D([], [], color=colour, marker=marker, markersize=size, linestyle="none", label=label)

    handles = [mark(name, "o", colour) for name, colour in zip(classes, CLASSES, strict=False)]
    if whose == "clients":
        places = ("first", "second", "third")
        handles += [
            mark(f"{place} client", marker, "0.4") for place, marker in zip(places, _MARKERS, strict=True)
        ]
    ring = mark("dotted ring: virtual", "o", "0.4", 8)
    ring.set(markerfacecolor="none", markeredgewidth=0.7)
    return [*handles, ring]
