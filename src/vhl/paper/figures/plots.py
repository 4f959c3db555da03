"""The paper's figures of curves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from vhl.paper.evidence import Choice, Evidence, Runs, at, generator, lengths
from vhl.paper.figures.choosing import choose, described
from vhl.paper.figures.curves import Curve, Panel, figure_of
from vhl.paper.row import Row
from vhl.paper.rows import TABLES, rows
from vhl.report.figures.lines import Look
from vhl.report.figures.style import PALETTE

_ALGORITHMS = {"fedavg": "FedAvg", "fedprox": "FedProx", "scaffold": "SCAFFOLD", "fednova": "FedNova"}
_MAIN = "cifar10/a0.1-e1-k10"


def convergence(table: str, evidence: Evidence, runs: Path) -> Figure:
    """Test accuracy in the four settings of a table."""
    settings = dict.fromkeys(name.rpartition("/")[0] for name, row in rows().items() if row.table == table)
    panels = [_panel(_setting(setting), "accuracy", _looks(setting), evidence) for setting in settings]
    return figure_of(f"Convergence on {TABLES[table]}", panels, 2, (10, 7))


def main(evidence: Evidence, runs: Path) -> Figure:
    """Test accuracy and client drift in the main setting."""
    panels = [
        _panel(title, measure, _looks(_MAIN), evidence)
        for title, measure in (("test accuracy", "accuracy"), ("model divergence", "drift"))
    ]
    return figure_of(f"{TABLES['cifar10']} with {_setting(_MAIN)}", panels, 1, (10, 4))


def drift(evidence: Evidence, runs: Path) -> Figure:
    """Client drift on CIFAR-10 with α = 0.1, also where virtual data are trained on without calibration."""
    naive = {
        f"further/naive/{algorithm}": Look(f"{label} + naive VHL", colour, "dotted")
        for (algorithm, label), colour in zip(_ALGORITHMS.items(), PALETTE, strict=False)
    }
    panels = [
        _panel(_setting(setting), "drift", _looks(setting) | (naive if setting == _MAIN else {}), evidence)
        for setting in (_MAIN, "cifar10/a0.1-e5-k10", "cifar10/a0.1-e1-k100")
    ]
    return figure_of(f"Client drift on {TABLES['cifar10']}", panels, 1, (13, 4.3))


def ablation(evidence: Evidence, runs: Path) -> Figure:
    """Models pretrained on virtual data, sizes of the virtual batch, and how well virtual data are learnt."""
    pretrained = {
        f"{_MAIN}/fedavg": Look("FedAvg", PALETTE[0], "dashed"),
        "further/vftl/fedavg": Look("VFTL", PALETTE[1]),
        f"{_MAIN}/fedavg-vhl": Look("FedAvg + VHL", PALETTE[0]),
    }
    sizes = {
        f"further/batch-{size}/fedavg": Look(f"$B_v$ = {size}", colour)
        for size, colour in zip((64, 128, 256, 384), PALETTE, strict=False)
    }
    panels = [
        _panel("pretrained on virtual data", "accuracy", pretrained, evidence),
        _panel("size of the virtual batch", "accuracy", sizes, evidence),
        _virtual_data("training on virtual data", evidence),
    ]
    return figure_of(
        f"Further study, {TABLES['cifar10']} with {_setting(_MAIN)}", panels, 1, (12, 4.3), legends=True
    )


def light(evidence: Evidence, runs: Path) -> Figure:
    """VHL and its cheaper variant, by rounds and by what they compute."""
    looks = {
        f"{_MAIN}/fedavg": Look("FedAvg", PALETTE[0], "dashed"),
        f"{_MAIN}/fedavg-vhl": Look("FedAvg + VHL", PALETTE[2]),
        "light/vhl-light/fedavg": Look("FedAvg + vhl-light", PALETTE[1]),
    }
    length = rows()["light/vhl-light/fedavg"].settings["rounds"]
    over_rounds = _panel("by rounds", "accuracy", looks, evidence, length)
    over_compute = replace(over_rounds, title="by compute", over="compute")
    return figure_of(
        f"VHL at a quarter of its extra compute, {TABLES['cifar10']} with {_setting(_MAIN)}",
        [over_rounds, over_compute],
        1,
        (10, 4),
    )


def _looks(setting: str) -> dict[str, Look]:
    """The rows of a setting: a colour for each algorithm, dashed without VHL."""
    looks = {}
    for (algorithm, label), colour in zip(_ALGORITHMS.items(), PALETTE, strict=False):
        looks[f"{setting}/{algorithm}"] = Look(label, colour, "dashed")
        looks[f"{setting}/{algorithm}-vhl"] = Look(f"{label} + VHL", colour)
    return looks


def _setting(setting: str) -> str:
    settings = rows()[f"{setting}/fedavg"].settings
    partition, training = settings["partition"], settings["training"]
    return f"α = {partition['alpha']}, E = {training['epochs']}, K = {partition['clients']}"


def _panel(
    title: str, measure: str, looks: Mapping[str, Look], evidence: Evidence, rounds: int | None = None
) -> Panel:
    """With ``rounds`` those runs that had so many, as they were then."""

    def found(row: Row, choice: Choice) -> Runs:
        runs = evidence.runs(row, choice)
        return runs if rounds is None else at(runs, rounds)

    def size(row: Row, choice: Choice) -> tuple[int, int]:
        runs = found(row, choice)
        return max(lengths(runs), default=0), len(runs)

    choices = dict.fromkeys(choice for name in looks for choice in evidence.choices(rows()[name]))
    chosen = choose(looks, choices, size)
    curves = [Curve.of(looks[name], found(rows()[name], choice), measure) for name, choice in chosen.items()]
    return Panel(
        title, measure, curves, described(chosen, {name: look.label for name, look in looks.items()})
    )


def _virtual_data(title: str, evidence: Evidence) -> Panel:
    """A curve for each kind of virtual data with which FedAvg + VHL was run, all of one profile."""
    row = rows()[f"{_MAIN}/fedavg-vhl"]
    found = evidence.choices(row)
    longest = max(found, key=lambda choice: max(lengths(found[choice])), default=None)
    shown = [choice for choice in found if longest is not None and choice.profile == longest.profile]
    curves = [
        Curve.of(Look(generator(choice.experiment(row)), colour), found[choice], "virtual_accuracy")
        for choice, colour in zip(shown, PALETTE, strict=False)
    ]
    return Panel(title, "virtual_accuracy", curves, f"profile {longest.profile}" if longest else "")
