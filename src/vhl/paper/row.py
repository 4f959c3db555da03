"""A row of a table, and what all of them have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vhl.experiment import Experiment, Profile

GENERATOR = "stylegan"
"""The virtual data of the paper's main results."""
_MODELS = {"cifar100": "resnet50"}  # section 5.1; ResNet-18 for the others
MAIN = "cifar10/a0.1-e1-k10"
"""The setting that the paper's ablations are done in."""


@dataclass(frozen=True)
class Row:
    """One number of the paper, and the experiment that repeats it."""

    name: str
    """``table/setting/method``."""
    settings: Mapping[str, Any]
    """The experiment, but for the profile and the virtual data where the paper has its usual ones."""
    accuracy: float | None = None
    """Best test accuracy in percent, as published; of our own rows there is none."""
    rounds: int | None = None
    """Rounds to the target, as published."""
    target: float | None = None
    """The paper's target accuracy in percent."""
    baseline: str = ""
    """The row whose best sets a target of our own: FedAvg without virtual data in this setting."""
    without: str | None = None
    """The row of the same algorithm without virtual data."""

    @property
    def table(self) -> str:
        return self.name.split("/")[0]

    @property
    def uses_generator(self) -> bool:
        """Whether the choice of virtual data is open."""
        return self.settings["objective"] != "plain" and "virtual" not in self.settings

    def experiment(self, profile: Profile = "paper", virtual: Any = GENERATOR) -> Experiment:
        chosen = {"virtual": virtual} if self.uses_generator else {}
        return Experiment.read({"profile": profile, **self.settings, **chosen})


def federated(dataset: str, partition: dict[str, Any], epochs: int, rate: float) -> dict[str, Any]:
    """The paper's setting: section 5.1 and appendix C.1."""
    return {
        "data": dataset,
        "partition": partition,
        "model": _MODELS.get(dataset, "resnet18"),
        "training": {"epochs": epochs, "lr": rate},
        "rounds": 1000 if epochs == 1 else 400,
        "clients_per_round": 5 if partition["clients"] == 10 else 10,
    }


def ablation(rounds: int = 1000, rate: float = 0.01) -> dict[str, Any]:
    """The setting of the paper's ablations, as in the rows of :data:`MAIN`."""
    setting = federated("cifar10", {"name": "lda", "alpha": 0.1, "clients": 10}, 1, rate)
    return {**setting, "rounds": rounds}
