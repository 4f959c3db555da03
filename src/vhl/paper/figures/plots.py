"""The paper's figures of curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vhl.paper.evidence import Choice, Evidence, Runs, at, generator, lengths
from vhl.paper.figures.choosing import choose, described
from vhl.paper.row import Row
from vhl.paper.rows import TABLES, rows
from vhl.report.curves import ROUNDS, Seed, how_to_read, series
from vhl.report.figure import Curves, Figure
from vhl.report.looks import DASHED, DOTTED, LIGHT, Look
from vhl.runs.digest import Digest

_ALGORITHMS = {"fedavg": "FedAvg", "fedprox": "FedProx", "scaffold": "SCAFFOLD", "fednova": "FedNova"}
_MAIN = "cifar10/a0.1-e1-k10"
_UNITS = {
    "accuracy": ("test accuracy (%)", 100),
    "virtual_accuracy": ("training accuracy on virtual data (%)", 100),
    "drift": ("client drift (distance from the mean)", 1),
}
"""What a panel may show: its axis, and the factor to the axis's unit."""
_COMPUTE = {"compute": "multiply-adds (1: a round of FedAvg)"}
_LETTERS = "abcd"  # of panels
Lines = Mapping[str, tuple[str, Look]]
"""Rows, each with its label and look."""


@dataclass(frozen=True)
class _Plot:
    """A panel before it is known how many rounds the figure averages over."""

    title: str
    measure: str
    curves: Sequence[tuple[str, Look, Sequence[Seed]]]
    about: str
    """With which profile and virtual data it was run."""
    axes: Mapping[str, str]


def convergence(table: str, evidence: Evidence, runs: Path) -> Figure:
    """Test accuracy in the four settings of a table."""
    settings = dict.fromkeys(name.rpartition("/")[0] for name, row in rows().items() if row.table == table)
    plots = [_plot(_setting(setting), "accuracy", _lines(setting), evidence) for setting in settings]
    return _figure(f"Convergence on {TABLES[table]}", plots, across=2)


def main(evidence: Evidence, runs: Path) -> Figure:
    """Test accuracy and client drift in the main setting."""
    plots = [
        _plot(title, measure, _lines(_MAIN), evidence)
        for title, measure in (("test accuracy", "accuracy"), ("model divergence", "drift"))
    ]
    return _figure(f"{TABLES['cifar10']} with {_setting(_MAIN)}", plots)


def drift(evidence: Evidence, runs: Path) -> Figure:
    """Client drift on CIFAR-10 with α = 0.1, also where virtual data are trained on without calibration."""
    naive = {
        f"further/naive/{algorithm}": (f"{label} + naive VHL", Look(colour, DOTTED))
        for colour, (algorithm, label) in enumerate(_ALGORITHMS.items())
    }
    plots = [
        _plot(_setting(setting), "drift", _lines(setting) | (naive if setting == _MAIN else {}), evidence)
        for setting in (_MAIN, "cifar10/a0.1-e5-k10", "cifar10/a0.1-e1-k100")
    ]
    return _figure(f"Client drift on {TABLES['cifar10']}", plots)


def ablation(evidence: Evidence, runs: Path) -> Figure:
    """Models pretrained on virtual data, sizes of the virtual batch, and how well virtual data are learnt."""
    pretrained = {
        f"{_MAIN}/fedavg": ("FedAvg", Look(0, DASHED)),
        "further/vftl/fedavg": ("VFTL", Look(1)),
        f"{_MAIN}/fedavg-vhl": ("FedAvg + VHL", Look(0)),
    }
    sizes = {
        f"further/batch-{size}/fedavg": (f"Bᵥ = {size}", Look(colour))
        for colour, size in enumerate((64, 128, 256, 384))
    }
    plots = [
        _plot("pretrained on virtual data", "accuracy", pretrained, evidence),
        _plot("size of the virtual batch", "accuracy", sizes, evidence),
        _virtual_data("training on virtual data", evidence),
    ]
    title = f"Further study, {TABLES['cifar10']} with {_setting(_MAIN)}"
    return replace(_figure(title, plots), own_legends=True)


def light(evidence: Evidence, runs: Path) -> Figure:
    """VHL and its cheaper variant, by rounds and by what they compute."""
    lines = {
        f"{_MAIN}/fedavg": ("FedAvg", Look(0, DASHED)),
        f"{_MAIN}/fedavg-vhl": ("FedAvg + VHL", Look(2)),
        "light/vhl-light/fedavg": ("FedAvg + vhl-light", Look(1)),
    }
    length = rows()["light/vhl-light/fedavg"].settings["rounds"]
    over_rounds = _plot("by rounds", "accuracy", lines, evidence, length)
    over_compute = replace(over_rounds, title="by compute", axes=_COMPUTE)
    title = f"VHL at a quarter of its extra compute, {TABLES['cifar10']} with {_setting(_MAIN)}"
    return _figure(title, [over_rounds, over_compute])


def _lines(setting: str) -> dict[str, tuple[str, Look]]:
    """The rows of a setting: a colour for each algorithm, dashed without VHL."""
    lines = {}
    for colour, (algorithm, label) in enumerate(_ALGORITHMS.items()):
        lines[f"{setting}/{algorithm}"] = label, Look(colour, DASHED)
        lines[f"{setting}/{algorithm}-vhl"] = f"{label} + VHL", Look(colour)
    return lines


def _setting(setting: str) -> str:
    settings = rows()[f"{setting}/fedavg"].settings
    partition, training = settings["partition"], settings["training"]
    return f"α = {partition['alpha']}, E = {training['epochs']}, K = {partition['clients']}"


def _plot(title: str, measure: str, lines: Lines, evidence: Evidence, rounds: int | None = None) -> _Plot:
    """With ``rounds`` those runs that had so many, as they were then."""

    def found(row: Row, choice: Choice) -> Runs:
        runs = evidence.runs(row, choice)
        return runs if rounds is None else at(runs, rounds)

    def size(row: Row, choice: Choice) -> tuple[int, int]:
        runs = found(row, choice)
        return max(lengths(runs), default=0), len(runs)

    choices = dict.fromkeys(choice for name in lines for choice in evidence.choices(rows()[name]))
    chosen = choose(lines, choices, size)
    curves = [(*lines[name], _seeds(found(rows()[name], choice), measure)) for name, choice in chosen.items()]
    about = described(chosen, {name: label for name, (label, _) in lines.items()})
    return _Plot(title, measure, curves, about, ROUNDS)


def _virtual_data(title: str, evidence: Evidence) -> _Plot:
    """A curve for each kind of virtual data with which FedAvg + VHL was run, all of one profile."""
    row = rows()[f"{_MAIN}/fedavg-vhl"]
    found = evidence.choices(row)
    longest = max(found, key=lambda choice: max(lengths(found[choice])), default=None)
    shown = [choice for choice in found if longest is not None and choice.profile == longest.profile]
    curves = [
        (generator(choice.experiment(row)), Look(colour), _seeds(found[choice], "virtual_accuracy"))
        for colour, choice in enumerate(shown[: len(LIGHT)])
    ]
    return _Plot(title, "virtual_accuracy", curves, f"profile {longest.profile}" if longest else "", ROUNDS)


def _seeds(runs: Runs, measure: str) -> list[Seed]:
    """Where they had different numbers of rounds, they are cut to that which shows most rounds altogether."""
    cuts = [at(runs, rounds) for rounds in lengths(runs)]
    longest = max(cuts, key=lambda cut: sum(len(run.records) for run in cut.values()))
    return [_seed(run, measure) for run in longest.values()]


def _seed(run: Digest, measure: str) -> Seed:
    rounds = np.array([record.round for record in run.records], dtype=float)
    values = [getattr(record, measure) for record in run.records]
    scaled = [None if value is None else _UNITS[measure][1] * value for value in values]
    return Seed.of(scaled, {"round": rounds, "compute": rounds * run.records[-1].compute})


def _figure(title: str, plots: Sequence[_Plot], across: int = 3) -> Figure:
    window = _window([seeds for plot in plots for _, _, seeds in plot.curves])
    panels = [
        Curves(
            title=f"({letter}) {plot.title}",
            y=_UNITS[plot.measure][0],
            axes=plot.axes,
            series=[own for curve in plot.curves if (own := series(*curve, windows=[window]))],
            window=window,
        )
        for plot, letter in zip(plots, _LETTERS, strict=False)
    ]
    panels = [panel if panel.series else replace(panel, note="not run") for panel in panels]
    return Figure(name="", title=title, subtitle=_subtitle(plots, panels), panels=panels, across=across)


def _window(curves: Sequence[Sequence[Seed]]) -> int:
    """Rounds to average over: a fortieth of the longest curve, odd, 3 or more."""
    ends = [min(seed.places["round"].max(initial=0) for seed in seeds) for seeds in curves]
    return max(3, int(max(ends, default=0)) // 40 // 2 * 2 + 1)


def _subtitle(plots: Sequence[_Plot], panels: Sequence[Curves]) -> str:
    """How to read the curves, and with which profile and virtual data each panel was run."""
    letters: dict[str, list[str]] = {}
    for plot, panel, letter in zip(plots, panels, _LETTERS, strict=False):
        if panel.series:
            letters.setdefault(plot.about, []).append(letter)
    lines = [f"({', '.join(own)}) {about}" for about, own in letters.items()] if len(letters) > 1 else letters
    return "\n".join([how_to_read(panels), *lines])
