"""Every row of every table of the paper as a named experiment: the published tables and a few rules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from vhl.paper.own import choices, light, methods, search
from vhl.paper.published import learning_rate, published
from vhl.paper.row import MAIN, Row, ablation, federated

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
    "search": "Search for the options of methods beyond the paper (60 rounds)",
    "light": "VHL at a quarter of its extra compute (CIFAR-10, α = 0.1, E = 1, K = 10 unless said)",
}
"""The tables by name, with their titles, in the paper's order; the last four are ours."""
_SHOWN = {
    "features_at": (10, 100, 300, 1000),  # the paper shows them; it counts rounds from 0
    "keep_at": (10, 30, 100, 200, 300, 600, 1000),  # for `vhl theory`
}


@cache
def rows() -> dict[str, Row]:
    """All rows by name, in the paper's order, then our own."""
    found = [*_main(), *_partitions(), *_further(), *_feddf(), *_centralized()]
    found += [*choices(), *methods(), *search(), *light(list(_main()))]
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
                federated(dataset, {"name": "lda", "alpha": alpha, "clients": clients}, epochs, rate),
                vhl,
                accuracy=cell[f"acc_{kind}"],
                rounds=cell[f"rounds_{kind}"],
                target=cell["target"],
            )


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
    if name == f"{MAIN}/fedavg":
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
        settings = federated(cell["dataset"], partition, 1, 0.01)  # the table of rates leaves these out
        setting = f"partitions/{cell['partition']}"
        for vhl in (False, True):
            accuracy = cell["acc_vhl" if vhl else "acc_plain"]
            yield _row(setting, cell["algorithm"], settings, vhl, accuracy=accuracy)


def _further() -> Iterator[Row]:
    for cell in published()["further"]:
        algorithm = cell["algorithm"]
        variant, settings = _variant(cell["variant"])
        rate = learning_rate("cifar10", 0.1, 1, 10, algorithm, vhl=settings["objective"] != "plain")
        base = ablation(rate=rate)
        plain = f"further/{variant.removesuffix('-vhl')}" if variant.startswith("resnet") else MAIN
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
            "engine": {"lanes": 16},  # a step of so small a network keeps a GPU busy for microseconds
        }
        fedavg = f"{setting}/fedavg"
        without = None if method == "fedavg" else fedavg
        yield Row(f"{setting}/{method}", settings, cell["acc"], baseline=fedavg, without=without)
        if method in _DISTILLED:  # at a fifth of the cost; ours
            short = {**settings, "algorithm": {**settings["algorithm"], "steps": 2_000}}
            yield Row(f"{setting}/{method}-2000", short, baseline=fedavg, without=without)


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
                    **federated(dataset, {"name": "centralized", "clients": 1}, 1, 0.01),
                    "partition": "centralized",
                    "clients_per_round": 1,
                    "algorithm": "fedavg",
                    "objective": objective,
                },
                accuracies[objective],
                baseline=plain,
                without=plain if objective == "vhl" else None,
            )
