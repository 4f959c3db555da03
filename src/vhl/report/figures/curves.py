"""The page's curves: a colour for each method, dashed without virtual data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from vhl.report.figures.lines import WIDTH, Look, Numbers, draw, running_mean
from vhl.report.figures.style import PALETTE, SMALL, TEXT, blank, cut, legend_below, short
from vhl.report.looks import DASHES, windows

MOST = 20
"""Methods in a figure: of more the best are shown."""
_AXES = {
    "round": "communication round",
    "samples": "images trained on, natural and virtual",
    "seconds": "wall time (seconds)",
}


@dataclass(frozen=True)
class Panel:
    """What one pair of axes shows: a column of the runs, against another."""

    column: Callable[[Mapping[str, Any]], Sequence[float | None]]
    unit: str
    scale: float = 1
    against: str = "round"
    title: str = ""


@dataclass(frozen=True)
class Curve:
    """A method, in the rounds that all its seeds have: a row of values for each."""

    look: Look
    places: Numbers
    values: Numbers
    smooth: Numbers


def accuracy(content: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    """Against rounds, images trained on and time."""
    window, title = windows(content["runs"])["accuracy"], "Test accuracy of the server's model"
    for against, name in (("round", "rounds"), ("samples", "images"), ("seconds", "time")):
        panel = Panel(lambda columns: columns["accuracy"], "test accuracy (%)", 100, against)
        yield from _figure(f"accuracy-{name}", title, content, [panel], window)


def training(content: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    """What happens at the clients."""
    window = windows(content["runs"])["training"]
    drift = Panel(lambda columns: columns["drift"], "distance from the average")
    yield from _figure("drift", "Drift of the clients' models in a round", content, [drift], window)
    terms = dict.fromkeys(term for run in content["runs"] for term in run["columns"]["loss"])
    losses = [Panel(_loss(term), "loss", title=term) for term in terms]
    yield from _figure("loss", "Terms of the loss, mean over the clients' steps", content, losses, window)
    virtual = Panel(lambda columns: columns["virtual_accuracy"], "training accuracy (%)", 100)
    title = "Training accuracy on the virtual data"
    yield from _figure("virtual-accuracy", title, content, [virtual], window)


def theory(content: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    """What `vhl theory` measured, where it was called."""
    panels = [
        Panel(_term("margin_natural"), "margin", title="natural images"),
        Panel(_term("margin_virtual"), "margin", title="held-out virtual images"),
        Panel(_term("normalised_distance"), "Wasserstein distance", title="features of length 1"),
    ]
    yield from _figure("theory", "Margins, and distance of natural and virtual features", content, panels, 1)


def _term(name: str) -> Callable[[Mapping[str, Any]], Sequence[float | None]]:
    return lambda columns: columns["theory"].get(name, [])


def _loss(term: str) -> Callable[[Mapping[str, Any]], Sequence[float | None]]:
    return lambda columns: columns["loss"].get(term, [])


def look_of(content: Mapping[str, Any], group: int) -> Look:
    again, place = divmod(group, len(PALETTE))
    own = content["groups"][group]
    dashes = DASHES[again % len(DASHES)][bool(own["plain"])]
    return Look(own["label"], PALETTE[place], (0, dashes) if dashes else "solid")


def _figure(
    name: str, title: str, content: Mapping[str, Any], panels: Sequence[Panel], window: int
) -> Iterator[tuple[str, Figure]]:
    """Nothing where no method has a value."""
    groups = _best(content)
    curves = [[_curve(content, group, panel, window) for group in groups] for panel in panels]
    shown = [(panel, [c for c in own if c]) for panel, own in zip(panels, curves, strict=True) if any(own)]
    if not shown:
        return
    across = min(3, len(shown))
    down = -(-len(shown) // across)
    size = (6.5, 4.0) if len(shown) == 1 else (max(6.5, 3.2 * across), 2.6 * down + 0.7)
    figure, places = blank(title, _subtitle(content, shown, window), (down, across), size)
    for axes, (panel, own) in zip(places, shown, strict=False):
        axes.set_title(cut(panel.title, 0.75 * size[0] / across, size=TEXT), fontsize=TEXT)
        _fill(axes, panel, own, every_round=window > 1)
    for axes in places[len(shown) :]:
        axes.remove()
    looks = dict.fromkeys(curve.look for _, own in shown for curve in own)
    legend_below(places[0], [(_line(look), look.label) for look in looks])
    yield name, figure


def _line(look: Look) -> Line2D:
    return Line2D([], [], color=look.colour, linestyle=look.style, linewidth=WIDTH)


def _best(content: Mapping[str, Any]) -> list[int]:
    """The methods with the best accuracies, in the page's order."""
    groups = content["groups"]
    best = sorted(range(len(groups)), key=lambda group: groups[group]["best"]["mean"], reverse=True)
    return sorted(best[:MOST])


def _curve(content: Mapping[str, Any], group: int, panel: Panel, window: int) -> Curve | None:
    seeds = []
    for columns in (run["columns"] for run in content["runs"] if run["group"] == group):
        values = np.array(panel.column(columns), dtype=float) * panel.scale
        measured = np.flatnonzero(np.isfinite(values))
        if measured.size:
            rounds, places = (np.array(columns[name])[measured] for name in ("round", panel.against))
            seeds.append((rounds, places, values[measured], running_mean(rounds, values[measured], window)))
    common = reduce(np.intersect1d, [seed[0] for seed in seeds]) if seeds else np.array([])
    if not common.size:
        return None
    kept = [[column[np.isin(seed[0], common)] for column in seed[1:]] for seed in seeds]
    places, values, smooth = (np.array(column, dtype=float) for column in zip(*kept, strict=True))
    return Curve(look_of(content, group), places.mean(0), values, smooth)


def _subtitle(content: Mapping[str, Any], shown: Sequence[tuple[Panel, list[Curve]]], window: int) -> str:
    """How to read the curves."""
    seeds = max(len(curve.values) for _, own in shown for curve in own)
    words = [f"bold: running mean over {window} rounds; faint: every round"] if window > 1 else []
    words += [f"mean of up to {seeds} seeds, band from the lowest to the highest"] if seeds > 1 else []
    words += [f"the best {MOST} of {len(content['groups'])} methods"] if len(content["groups"]) > MOST else []
    return "; ".join(words)


def _fill(axes: Axes, panel: Panel, curves: Sequence[Curve], *, every_round: bool) -> None:
    axes.set_xlabel(_AXES[panel.against], fontsize=TEXT)
    axes.set_ylabel(panel.unit, fontsize=TEXT)
    axes.tick_params(labelsize=SMALL)
    axes.spines[["top", "right"]].set_visible(False)
    for curve in curves:
        faint = (curve.look.colour, 0.35) if every_round else None
        draw(axes, curve.look, curve.places, curve.values, curve.smooth, faint)
    axes.margins(x=0.02)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=panel.against == "round"))
    axes.xaxis.set_major_formatter(short)
    axes.grid(color="0.93", linewidth=0.6)
    axes.set_axisbelow(True)
