"""Curves over rounds: running means, and what several seeds make of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from vhl.report.figure import Band, Curves, Numbers, Series
from vhl.report.looks import Look

ROUNDS = {"round": "communication round"}
_FEW = 10  # rounds, each of which is to be seen


@dataclass(frozen=True)
class Seed:
    """One run's values, in the rounds in which there is one."""

    values: Numbers
    places: Mapping[str, Numbers]
    """Where each of them lies on the axes; ``round`` is one of these."""

    @classmethod
    def of(cls, values: Sequence[float | None], places: Mapping[str, Numbers]) -> Seed:
        """Of a value for each round; what is not there or not finite is left out."""
        found = np.array(values, dtype=float)
        measured = np.isfinite(found)
        return cls(found[measured], {name: own[measured] for name, own in places.items()})


def series(label: str, look: Look, seeds: Iterable[Seed], windows: Iterable[int] = ()) -> Series | None:
    """Seeds together, in the rounds that all of them have; nothing where there is no such round."""
    measured = [seed for seed in seeds if seed.values.size]
    if not measured:
        return None
    common = reduce(np.intersect1d, (seed.places["round"] for seed in measured))
    if not common.size:
        return None
    kept = [np.isin(seed.places["round"], common) for seed in measured]
    places = {
        name: np.mean([seed.places[name][own] for seed, own in zip(measured, kept, strict=True)], 0)
        for name in measured[0].places
    }
    bands = {}
    for window in sorted({1, *windows}):
        means = [running_mean(seed.places["round"], seed.values, window) for seed in measured]
        bands[window] = _band([mean[own] for mean, own in zip(means, kept, strict=True)])
    return Series(label, look, places, bands, len(measured), marked=common.size < _FEW)


def running_mean(rounds: Numbers, values: Numbers, window: int) -> Numbers:
    """Mean over the rounds up to ``window // 2`` before and after; at the ends over those that there are.

    >>> running_mean(np.array([1.0, 2, 3, 7]), np.array([0.0, 3, 6, 9]), 3).tolist()
    [1.5, 3.0, 4.5, 9.0]
    """
    start = np.searchsorted(rounds, rounds - window // 2, "left")
    end = np.searchsorted(rounds, rounds + window // 2, "right")
    # Every second of the sums is what lies between a mean's end and the next one's start.
    sums = np.add.reduceat(np.append(values, 0.0), np.column_stack([start, end]).ravel())[::2]
    means: Numbers = sums / (end - start)
    return means


def _band(seeds: Sequence[Numbers]) -> Band:
    together = np.array(seeds)
    mean = together.mean(0)
    return Band(mean, together.min(0), together.max(0)) if len(seeds) > 1 else Band(mean)


def how_to_read(panels: Iterable[Curves]) -> str:
    """What is bold, what is faint and what the bands are."""
    shown = [panel for panel in panels if panel.series]
    window = max((panel.window for panel in shown), default=1)
    seeds = max((own.seeds for panel in shown for own in panel.series), default=1)
    text = [f"bold: running mean over {window} rounds; faint: every round"] if window > 1 else []
    text += [f"mean of up to {seeds} seeds, band from the lowest to the highest"] if seeds > 1 else []
    return "; ".join(text)
