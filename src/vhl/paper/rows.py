"""Every row of every table of the paper as a named experiment: the published tables and a few rules.

Three tables are ours: choices that the paper does not tell, one by one, to see which of them matter; methods
and distances that it does not speak of; and VHL made cheaper.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from vhl.experiment import Experiment, Profile
from vhl.paper.published import learning_rate, published

TABLES = {
    "cifar10": "CIFAR-10",
    "fmnist": "FMNIST",
    "svhn": "SVHN",
    "cifar100": "CIFAR-100",
    "partitions": "Other partitions of CIFAR-10",
    "further": "Further study on CIFAR-10 (α = 0.1, E = 1, K = 10)",
    "feddf": "In FedDF's setting (CIFAR-10, ResNet-8, 20 clients)",
    "centralized": "All data in one place",
    "choices": "What the paper leaves open (CIFAR-10, α = 0.1, E = 1, K = 10)",
    "methods": "Methods beyond the paper (CIFAR-10, α = 0.1, E = 1, K = 10)",
    "light": "VHL at a quarter of its extra cost (CIFAR-10, α = 0.1, E = 1, K = 10 unless said)",
}
"""The tables by name, with their titles, in the paper's order; the last three are ours."""
GENERATOR = "stylegan"
"""The virtual data of the paper's main results."""
_MODELS = {"cifar100": "resnet50"}  # section 5.1; ResNet-18 for the others
_MAIN = "cifar10/a0.1-e1-k10"
_SHOWN = {
    "features_at": (10, 100, 300, 1000),  # the paper shows them; it counts rounds from 0
    "keep_at": (10, 30, 100, 200, 300, 600, 1000),  # for `vhl theory`
}


@dataclass(frozen=True)
class Row:
    """One number of the paper, and the experiment that repeats it."""

    name: str
    """``table/setting/method``."""
    settings: Mapping[str, Any]
    """The experiment, but for the profile and the virtual data where the paper has its usual ones."""
    accuracy: float | None
    """Best test accuracy in percent, as published."""
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


@cache
def rows() -> dict[str, Row]:
    """All rows by name, in the paper's order, then our own."""
    found = [*_main(), *_partitions(), *_further(), *_feddf(), *_centralized()]
    found += [*_choices(), *_methods(), *_light()]
    return {row.name: row for row in found}


def _main() -> Iterator[Row]:
    for cell in published()["main"]:
        dataset, alpha, epochs, clients = (cell[k] for k in ("dataset", "alpha", "epochs", "clients"))
        setting = f"{dataset}/a{alpha}-e{epochs}-k{clients}"
        for vhl in (False, True):
            kind = "vhl" if vhl else "plain"
            rate = learning_rate(dataset, alpha, epochs, clients, cell["algorithm"], vhl=vhl)
            yield _row(
                setting,
                cell["algorithm"],
                _federated(dataset, {"name": "lda", "alpha": alpha, "clients": clients}, epochs, rate),
                vhl,
                accuracy=cell[f"acc_{kind}"],
                rounds=cell[f"rounds_{kind}"],
                target=cell["target"],
            )


def _federated(dataset: str, partition: dict[str, Any], epochs: int, rate: float) -> dict[str, Any]:
    """The paper's setting: section 5.1 and appendix C.1."""
    return {
        "data": dataset,
        "partition": partition,
        "model": _MODELS.get(dataset, "resnet18"),
        "training": {"epochs": epochs, "lr": rate},
        "rounds": 1000 if epochs == 1 else 400,
        "clients_per_round": 5 if partition["clients"] == 10 else 10,
    }


def _row(
    setting: str,
    algorithm: str,
    settings: dict[str, Any],
    vhl: bool,
    *,
    accuracy: float | None,
    **of_paper: Any,
) -> Row:
    """A row of a pair: an algorithm with or without VHL."""
    name = f"{setting}/{algorithm}"
    settings = {**settings, "algorithm": algorithm, "objective": "vhl" if vhl else "plain"}
    if name == f"{_MAIN}/fedavg":
        settings |= _SHOWN
    return Row(
        f"{name}-vhl" if vhl else name,
        settings,
        accuracy,
        baseline=f"{setting}/fedavg",
        without=name if vhl else None,
        **of_paper,
    )


def _partitions() -> Iterator[Row]:
    partitions: dict[str, dict[str, Any]] = {
        "classes-2": {"name": "classes", "per_client": 2},
        "subset": {"name": "subset"},
    }
    for cell in published()["partitions"]:
        partition = {**partitions[cell["partition"]], "clients": cell["clients"]}
        settings = _federated(cell["dataset"], partition, 1, 0.01)  # the table of rates leaves these out
        setting = f"partitions/{cell['partition']}"
        for vhl in (False, True):
            accuracy = cell["acc_vhl" if vhl else "acc_plain"]
            yield _row(setting, cell["algorithm"], settings, vhl, accuracy=accuracy)


def _further() -> Iterator[Row]:
    for cell in published()["further"]:
        algorithm = cell["algorithm"]
        variant, settings = _variant(cell["variant"])
        rate = learning_rate("cifar10", 0.1, 1, 10, algorithm, vhl=settings["objective"] != "plain")
        base = _federated("cifar10", {"name": "lda", "alpha": 0.1, "clients": 10}, 1, rate)
        plain = f"further/{variant.removesuffix('-vhl')}" if variant.startswith("resnet") else _MAIN
        if variant in ("baseline", "vhl", "naive") and algorithm == "fedavg":
            base |= _SHOWN
        yield Row(
            f"further/{variant}/{algorithm}",
            {**base, "algorithm": algorithm, **settings},
            cell["acc"],
            baseline=f"{plain}/fedavg",
            without=None if settings["objective"] == "plain" else f"{plain}/{algorithm}",
        )


_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "Baselines": ("baseline", {"objective": "plain"}),
    "VHL": ("vhl", {"objective": "vhl"}),
    "VFTL": ("vftl", {"objective": "vftl"}),
    "Naive VHL": ("naive", {"objective": "naive"}),
    "VFA": ("vfa", {"objective": "vfa", "virtual": "noise"}),  # it uses none, so no choice is open
    "Pure Noise": ("noise", {"objective": "vhl", "virtual": "noise"}),
    "Simple-CNN": ("decoder", {"objective": "vhl", "virtual": "decoder"}),
    "Tiny-ImageNet": ("tiny-imagenet", {"objective": "vhl", "virtual": "dataset:tiny-imagenet"}),
}


def _variant(label: str) -> tuple[str, dict[str, Any]]:
    """Name and settings of a variant of the further study; what is the default is not set again."""
    if label in _VARIANTS:
        return _VARIANTS[label]
    if match := re.fullmatch(r"B_v = (\d+)", label):
        size = int(match[1])
        options = {} if size == 128 else {"virtual_batch": size}  # unset is the natural batch: 128
        return f"batch-{size}", {"objective": {"name": "vhl", **options}}
    if match := re.fullmatch(r"lambda = ([\d.]+)", label):
        return f"lambda-{match[1]}", {"objective": {"name": "vhl", "calibration": float(match[1])}}
    if match := re.fullmatch(r"h_\{(\w+)\}", label):
        return f"tap-{match[1]}", {"objective": {"name": "vhl", "tap": match[1]}}
    depth, kind = re.fullmatch(r"Res(\d+)-(\w+)", label).groups()  # type: ignore[union-attr]
    vhl = kind == "VHL"
    return f"resnet{depth}" + "-vhl" * vhl, {
        "model": f"resnet{depth}",
        "objective": "vhl" if vhl else "plain",
    }


def _feddf() -> Iterator[Row]:
    """FedDF's setting (Lin et al., NeurIPS 2020), with this package's Dirichlet partition.

    A tenth of the training images is held back for validation, from all methods alike.
    """
    training = {
        "epochs": 40,
        "batch_size": 64,
        "lr": 0.1,
        "lr_decay": 1.0,
        "momentum": 0.0,
        "weight_decay": 0.0,
    }
    for cell in published()["feddf"]:
        setting, method = f"feddf/a{cell['alpha']}", cell["method"].replace("+", "-")
        settings: dict[str, Any] = {
            "data": {"name": "cifar10", "validation": 0.1},
            "partition": {"name": "lda", "alpha": cell["alpha"], "clients": 20},
            "model": "resnet8",
            "algorithm": {"name": method.split("-")[0], "weighting": "uniform", **_DISTILLED.get(method, {})},
            "objective": "vhl" if method.endswith("vhl") else "plain",
            "training": {**training, "keep_momentum": False},
            "rounds": 100,
            "clients_per_round": 8,
        }
        fedavg = f"{setting}/fedavg"
        without = None if method == "fedavg" else fedavg
        yield Row(f"{setting}/{method}", settings, cell["acc"], baseline=fedavg, without=without)
        if method in _DISTILLED:  # at a fifth of the cost; ours
            short = {**settings, "algorithm": {**settings["algorithm"], "steps": 2_000}}
            yield Row(f"{setting}/{method}-2000", short, None, baseline=fedavg, without=without)


_DISTILLED: dict[str, dict[str, Any]] = {
    "feddf-real": {"images": {"name": "dataset", "source": "cifar100"}},
    "feddf-noise": {},
}


def _centralized() -> Iterator[Row]:
    for dataset, accuracies in published()["centralized"].items():
        for objective in ("plain", "vhl"):
            plain = f"centralized/{dataset}/plain"
            yield Row(
                f"centralized/{dataset}/{objective}",
                {
                    **_federated(dataset, {"name": "centralized", "clients": 1}, 1, 0.01),
                    "partition": "centralized",
                    "clients_per_round": 1,
                    "algorithm": "fedavg",
                    "objective": objective,
                },
                accuracies[objective],
                baseline=plain,
                without=plain if objective == "vhl" else None,
            )


_CHOICES: dict[str, dict[str, Any]] = {
    "init-he": {"model": {"name": "resnet18", "init": "he"}},
    "partition-1": {"seeds": {"data": 1}},
    "few-images": {"virtual": {"name": "noise", "per_class": 200}},
    "shared-labels": {"objective": {"name": "vhl", "shared_labels": True}},
}


def _choices() -> Iterator[Row]:
    base = _federated("cifar10", {"name": "lda", "alpha": 0.1, "clients": 10}, 1, 0.01)
    for name, settings in _CHOICES.items():
        of_vhl = not settings.keys().isdisjoint({"objective", "virtual"})
        plain = _MAIN if of_vhl else f"choices/{name}"
        for objective in ("vhl",) if of_vhl else ("plain", "vhl"):
            vhl = objective == "vhl"
            yield Row(
                f"choices/{name}/fedavg" + "-vhl" * vhl,
                {**base, "algorithm": "fedavg", "objective": objective, **settings},
                None,
                baseline=f"{plain}/fedavg",
                without=f"{plain}/fedavg" if vhl else None,
            )


_METHODS = ("fedavgm", "fedadagrad", "fedadam", "fedyogi", "feddyn", "moon", "ccvr")
_DISTANCES = ("mmd", "means")


def _methods() -> Iterator[Row]:
    base = _federated("cifar10", {"name": "lda", "alpha": 0.1, "clients": 10}, 1, 0.01) | {"rounds": 200}
    fedavg = f"{_MAIN}/fedavg"
    for method in _METHODS:
        name = f"methods/{method}/plain"
        settings = {**base, "algorithm": method, "objective": "plain"}
        yield Row(name, settings, None, baseline=fedavg)
        vhl = {**settings, "objective": "vhl"}
        yield Row(f"methods/{method}/vhl", vhl, None, baseline=fedavg, without=name)
    for distance in _DISTANCES:
        # λ_v is SupCon's, whatever the profile
        objective = {"name": "vhl", "distance": distance, "virtual_calibration": 0.0}
        settings = {**base, "algorithm": "fedavg", "objective": objective}
        yield Row(f"methods/fedavg/vhl-{distance}", settings, None, baseline=fedavg, without=fedavg)


_LIGHT: dict[str, dict[str, Any]] = {
    "vhl-light": {"name": "vhl-light"},
    "share-alone": {"name": "vhl", "virtual_batch": 32, "batch_norm_share": 0.5},
    "mosaic-alone": {"name": "vhl", "mosaic": 2},
    "share-0.75": {"name": "vhl-light", "batch_norm_share": 0.75},
    "same-class": {"name": "vhl-light", "mosaic_classes": "same"},
    "no-supcon": {"name": "vhl-light", "calibration": 0.0, "virtual_calibration": 0.0},
    "no-virtual-loss": {"name": "vhl-light", "virtual_weight": 0.0},
    "statistics-alone": {"name": "naive", "mosaic": 2, "batch_norm_share": 0.5, "virtual_weight": 0.0},
}
_NORMS: dict[str, dict[str, Any]] = {
    "group-norm": {"model": {"name": "resnet18", "norm": "group"}},
    "fixed-statistics": {"training": {"epochs": 1, "lr": 0.01, "freeze_batch_norm": 150}},
}
_ELSEWHERE = ("cifar10/a0.05-e1-k10", "cifar10/a0.1-e1-k100", "fmnist/a0.1-e1-k10", "svhn/a0.1-e1-k10")


def _light() -> Iterator[Row]:
    """Half of 300 rounds is where statistics are fixed; rows of other settings have their FedAvg's."""
    base = _federated("cifar10", {"name": "lda", "alpha": 0.1, "clients": 10}, 1, 0.01) | {"rounds": 300}
    fedavg = f"{_MAIN}/fedavg"
    for variant, objective in _LIGHT.items():
        settings = {**base, "algorithm": "fedavg", "objective": objective}
        yield Row(f"light/{variant}/fedavg", settings, None, baseline=fedavg, without=fedavg)
    for algorithm in ("fedprox", "scaffold", "fednova"):
        settings = {**base, "algorithm": algorithm, "objective": "vhl-light"}
        without = f"{_MAIN}/{algorithm}"
        yield Row(f"light/vhl-light/{algorithm}", settings, None, baseline=fedavg, without=without)
    for norm, other in _NORMS.items():
        plain = f"light/{norm}/plain"
        for name in ("plain", "naive", "vhl", "vhl-light"):
            settings = {**base, **other, "algorithm": "fedavg", "objective": name}
            pair = None if name == "plain" else plain
            yield Row(f"light/{norm}/{name}", settings, None, baseline=plain, without=pair)
    for row in _main():
        if row.name.removesuffix("/fedavg") in _ELSEWHERE:
            name = f"light/{row.name.replace('/', '-', 1)}"
            settings = {**row.settings, "objective": "vhl-light", "rounds": 300}
            yield Row(name, settings, None, baseline=row.name, without=row.name)
