"""Accuracy of each class, and how the last round's models do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from vhl.report.figures.curves import look_of
from vhl.report.figures.grids import NAME, client_name, heat, name_axis
from vhl.report.figures.style import PALETTE, SMALL, TEXT, blank, cut, legend_below

_HATCHES = ("", "////", "....")
"""Where the colours begin anew."""


def per_class(content: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    """Mean over the seeds; a figure for each list of classes that runs have in common."""
    lists = dict.fromkeys(tuple(_classes(content, run)) for run in content["runs"])
    for number, classes in enumerate(lists, 1):
        name = "per-class" if number == 1 else f"per-class-{number}"
        yield from ((name, figure) for figure in _of_classes(content, classes))


def _of_classes(content: Mapping[str, Any], classes: Sequence[str]) -> Iterator[Figure]:
    """Nothing where no run was looked at by class."""
    means = {}
    for group in range(len(content["groups"])):
        found = [
            run["per_class"]
            for run in content["runs"]
            if run["group"] == group and run["per_class"] and tuple(_classes(content, run)) == classes
        ]
        if found:
            means[group] = _mean(found)
    if not means:
        return
    figure, (axes,) = blank(
        "Accuracy of the server's model on each class",
        "after the last evaluated round, mean over seeds",
        (1, 1),
        (7, 3.8),
    )
    width, entries = 0.8 / len(means), []
    for place, (group, values) in enumerate(means.items()):
        look, hatch = look_of(content, group), _HATCHES[group // len(PALETTE) % len(_HATCHES)]
        places = np.arange(len(classes)) - 0.4 + (place + 0.5) * width
        axes.bar(places, values, width, color=look.colour, hatch=hatch, edgecolor="white", linewidth=0)
        entries.append((Patch(facecolor=look.colour, hatch=hatch, edgecolor="white"), look.label))
    _percentages(axes, "y")
    axes.margins(x=0.01)
    name_axis(axes, "x", [cut(name, NAME) for name in classes], 6.2 / len(classes))
    legend_below(axes, entries)
    yield figure


def _classes(content: Mapping[str, Any], run: Mapping[str, Any]) -> Sequence[str]:
    names: Sequence[str] = content["problems"][run["problem"]]["classes"]
    return names


def _mean(found: Sequence[Sequence[float | None]]) -> NDArray[np.float64]:
    """In percent; a class that no run was tested on has none."""
    values = 100 * np.array(found, dtype=float)
    known = np.isfinite(values)
    sums, counts = np.where(known, values, 0).sum(0), known.sum(0)
    means: NDArray[np.float64] = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
    return means


def _percentages(axes: Axes, which: Literal["x", "y"]) -> None:
    axes.set(**{f"{which}lim": (0, 100)})
    (axes.set_ylabel if which == "y" else axes.set_xlabel)("test accuracy (%)", fontsize=TEXT)
    axes.tick_params(labelsize=SMALL)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=which, color="0.93", linewidth=0.6)
    axes.set_axisbelow(True)


def last_rounds(content: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    """For each run what the server's model takes for what, and the accuracy of every client's model."""
    for number, run in enumerate(content["runs"], 1):
        if run["last"]:
            problem = content["problems"][run["problem"]]
            figure, (left, right) = blank(
                f"After the last round of {run['name']}",
                "left: test images of each class, and what the server's model takes them for\n"
                "right: each model that a client sent, and the server's, which is their average",
                (1, 2),
                (9.5, 5),
            )
            _confusion(left, problem["classes"], np.array(run["last"]["confusion"]))
            _clients(right, content, run, problem)
            yield f"run-{number}-{_word(run['name'])}", figure


def _confusion(axes: Axes, classes: Sequence[str], counts: NDArray[np.int64]) -> None:
    """Outputs for virtual classes count together."""
    names = columns = [cut(name, NAME) for name in classes]
    if counts.shape[1] > len(classes):
        virtual = counts[:, len(classes) :].sum(1, keepdims=True)
        counts, columns = np.hstack([counts[:, : len(classes)], virtual]), [*names, "virtual"]
    heat(axes, counts, names, columns, (3.8, 3.5))
    axes.set_xlabel("taken for", fontsize=TEXT)
    axes.set_ylabel("class", fontsize=TEXT)


def _clients(
    axes: Axes, content: Mapping[str, Any], run: Mapping[str, Any], problem: Mapping[str, Any]
) -> None:
    last = run["last"]
    server = [value for value in run["columns"]["accuracy"] if value is not None][-1]
    names = [*(client_name(problem, client) for client in last["clients"]), "server"]
    values = 100 * np.array([*last["client_accuracy"], server], dtype=float)
    colours = [*["0.6"] * len(last["clients"]), look_of(content, run["group"]).colour]
    axes.barh(range(len(names)), values, color=colours)
    _percentages(axes, "x")
    axes.margins(y=0.01)
    axes.invert_yaxis()
    name_axis(axes, "y", names, 3.5 / len(names))


def _word(name: str) -> str:
    """For the name of a file.

    >>> _word("objective=vhl/seed 0")
    'objective-vhl-seed-0'
    """
    return re.sub("[^A-Za-z0-9]+", "-", name)[:60].strip("-") or "run"
