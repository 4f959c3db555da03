"""Rows that are ours.

Choices that the paper does not tell, one by one, to see which of them matter; methods and distances that it
does not speak of, and the search for their options; and VHL made cheaper.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from vhl.paper.row import MAIN, Row, ablation

_FEDAVG = f"{MAIN}/fedavg"

_CHOICES: dict[str, dict[str, Any]] = {
    "init-he": {"model": {"name": "resnet18", "init": "he"}},
    "partition-1": {"seeds": {"data": 1}},
    "few-images": {"virtual": {"name": "noise", "per_class": 200}},
    "shared-labels": {"objective": {"name": "vhl", "shared_labels": True}},
}


def choices() -> Iterator[Row]:
    for name, settings in _CHOICES.items():
        of_vhl = not settings.keys().isdisjoint({"objective", "virtual"})
        plain = _FEDAVG if of_vhl else f"choices/{name}/fedavg"
        base = {**ablation(), "algorithm": "fedavg"}
        if not of_vhl:
            yield Row(plain, {**base, "objective": "plain", **settings}, baseline=plain)
        vhl = {**base, "objective": "vhl", **settings}
        yield Row(f"choices/{name}/fedavg-vhl", vhl, baseline=plain, without=plain)


_METHODS: dict[str, dict[str, Any]] = {
    "fedavgm": {"server_lr": 0.3},
    "fedadagrad": {"server_lr": 0.003},
    "fedadam": {},
    "fedyogi": {},
    "feddyn": {"alpha": 0.1},
    "moon": {"mu": 0.1},
    "ccvr": {},
}
"""Methods, and options that the search found to be better than the default."""
_DISTANCES: dict[str, dict[str, Any]] = {"mmd": {"calibration": 0.1}, "means": {"calibration": 0.01}}
"""The same of distances: options of the objective."""
_SEARCH: dict[str, tuple[str, tuple[float, ...]]] = {
    "fedavgm": ("server_lr", (0.1, 0.3, 1.0)),
    "fedadagrad": ("server_lr", (0.001, 0.003, 0.01, 0.03, 0.1)),
    "fedadam": ("server_lr", (0.001, 0.003, 0.01, 0.03)),
    "fedyogi": ("server_lr", (0.001, 0.003, 0.01, 0.03)),
    "feddyn": ("alpha", (0.001, 0.01, 0.1, 1.0)),
    "moon": ("mu", (0.1, 1.0, 5.0)),
    "mmd": ("calibration", (0.01, 0.1, 1.0, 10.0)),
    "means": ("calibration", (0.01, 0.1, 1.0, 10.0)),
}
"""An option of a method or a distance, and the values tried."""


def _of_method(method: str, options: dict[str, Any], objective: str = "plain") -> dict[str, Any]:
    return {"algorithm": {"name": method, **options}, "objective": objective}


def _of_distance(distance: str, options: dict[str, Any]) -> dict[str, Any]:
    """λ_v is SupCon's, whatever the profile."""
    objective = {"name": "vhl", "distance": distance, "virtual_calibration": 0.0, **options}
    return {"algorithm": "fedavg", "objective": objective}


def methods() -> Iterator[Row]:
    base = ablation(rounds=200)
    for method, options in _METHODS.items():
        plain = f"methods/{method}/plain"
        yield Row(plain, {**base, **_of_method(method, options)}, baseline=_FEDAVG)
        vhl = {**base, **_of_method(method, options, "vhl")}
        yield Row(f"methods/{method}/vhl", vhl, baseline=_FEDAVG, without=plain)
    for distance, options in _DISTANCES.items():
        settings = {**base, **_of_distance(distance, options)}
        yield Row(f"methods/fedavg/vhl-{distance}", settings, baseline=_FEDAVG, without=_FEDAVG)


def search() -> Iterator[Row]:
    """Short runs for an option that a method's result depends on; of server rates without VHL."""
    for name, (option, values) in _SEARCH.items():
        of, without = (_of_method, None) if name in _METHODS else (_of_distance, _FEDAVG)
        for value in values:
            settings = {**ablation(rounds=60), **of(name, {option: value})}
            yield Row(f"search/{name}/{option}-{value:g}", settings, baseline=_FEDAVG, without=without)


_LIGHT: dict[str, dict[str, Any]] = {
    "vhl-light": {"name": "vhl-light"},
    "share-alone": {"name": "vhl", "virtual_batch": 32, "batch_norm_share": 0.5},
    "mosaic-alone": {"name": "vhl", "mosaic": 2},
    "share-0.75": {"name": "vhl-light", "batch_norm_share": 0.75},
    "same-class": {"name": "vhl-light", "mosaic_classes": "same"},
    "no-supcon": {"name": "vhl-light", "calibration": 0.0, "virtual_calibration": 0.0},
    "no-virtual-loss": {"name": "vhl-light", "virtual_weight": 0.0},
    "half": {"name": "vhl-light", "virtual_batch": 64},
    "half-no-virtual-loss": {"name": "vhl-light", "virtual_batch": 64, "virtual_weight": 0.0},
    "quarter": {"name": "vhl-light", "virtual_batch": 32},
    "quarter-no-virtual-loss": {"name": "vhl-light", "virtual_batch": 32, "virtual_weight": 0.0},
    "4x4": {"name": "vhl-light", "mosaic": 4},
    "four-times": {"name": "vhl", "virtual_batch": 512, "mosaic": 2},
    "statistics-alone": {"name": "naive", "mosaic": 2, "batch_norm_share": 0.5, "virtual_weight": 0.0},
}
_NORMS: dict[str, dict[str, Any]] = {
    "group-norm": {"model": {"name": "resnet18", "norm": "group"}},
    "fixed-statistics": {"training": {"epochs": 1, "lr": 0.01, "freeze_batch_norm": 150, "lr_drops": [150]}},
    "lower-rate": {"training": {"epochs": 1, "lr": 0.01, "lr_drops": [150]}},
    "fixed-usual-rate": {"training": {"epochs": 1, "lr": 0.01, "freeze_batch_norm": 150}},
}
ELSEWHERE = {
    "cifar10/a0.05-e1-k10": "α = 0.05",
    "cifar10/a0.1-e1-k100": "100 clients",
    "fmnist/a0.1-e1-k10": "FMNIST",
    "svhn/a0.1-e1-k10": "SVHN",
}
"""Settings of the paper in which ``vhl-light`` is tried too, in words."""


def light_elsewhere(setting: str) -> str:
    """The row of ``vhl-light`` in one of them."""
    return f"light/{setting.replace('/', '-', 1)}/fedavg"


def light(main: Sequence[Row]) -> Iterator[Row]:
    """VHL made cheaper. Half of 300 rounds is where statistics are fixed.

    With fixed statistics VHL diverges at the usual learning rate; the lower rate alone is there to compare.
    Rows of other settings are those of the paper's ``main`` table, with their FedAvg.
    """
    base = ablation(rounds=300)
    for variant, objective in _LIGHT.items():
        settings = {**base, "algorithm": "fedavg", "objective": objective}
        yield Row(f"light/{variant}/fedavg", settings, baseline=_FEDAVG, without=_FEDAVG)
    for algorithm in ("fedprox", "scaffold", "fednova"):
        settings = {**base, "algorithm": algorithm, "objective": "vhl-light"}
        without = f"{MAIN}/{algorithm}"
        yield Row(f"light/vhl-light/{algorithm}", settings, baseline=_FEDAVG, without=without)
    for norm, other in _NORMS.items():
        plain = f"light/{norm}/plain"
        for name in ("plain", "naive", "vhl", "vhl-light"):
            settings = {**base, **other, "algorithm": "fedavg", "objective": name}
            pair = None if name == "plain" else plain
            yield Row(f"light/{norm}/{name}", settings, baseline=plain, without=pair)
    for row in main:
        setting, _, method = row.name.rpartition("/")
        if setting in ELSEWHERE and method == "fedavg":
            settings = {**row.settings, "objective": "vhl-light", "rounds": 300}
            yield Row(light_elsewhere(setting), settings, baseline=row.name, without=row.name)
