"""What a method does unless told otherwise is what its authors did, where they say."""

from __future__ import annotations

from typing import Any

import pytest

from vhl.experiment import Experiment

SAMPLES = {"weighting": "samples"}  # McMahan et al., algorithm 1: n_k / n
FORGETFUL = {"beta1": 0.9, "beta2": 0.99, "tau": 1e-3}  # Reddi et al.

DEFAULTS: dict[str, dict[str, Any]] = {
    # β: Hsu et al.; η: the best that Reddi et al. found on CIFAR-10, as for the next three
    "fedavgm": {**SAMPLES, "server_lr": 1.0, "server_momentum": 0.9},
    "fedadagrad": {**SAMPLES, "server_lr": 0.1, "beta1": 0.0, "tau": 1e-3},
    "fedadam": {**SAMPLES, "server_lr": 0.01, **FORGETFUL},
    "fedyogi": {**SAMPLES, "server_lr": 0.01, **FORGETFUL},
    # Acar et al., algorithm 1 (the plain mean) and their example_cifar_10.py (α)
    "feddyn": {"weighting": "uniform", "alpha": 0.01},
    # Li, He and Song, section 4.1: μ is the best on CIFAR-10 (1 on CIFAR-100 and Tiny-ImageNet)
    "moon": {**SAMPLES, "mu": 5.0, "temperature": 0.5},
    # Lin et al., the authors' code: their script for CIFAR (steps, patience), noise_knowledge_transfer.py
    "feddf": {
        **SAMPLES,
        "images": None,
        "batch_size": None,
        "steps": 10_000,
        "lr": 1e-3,
        "clip": 5.0,
        "check_every": 100,
        "patience": 1_000,
        "keep_average": False,
    },
    # Luo et al.: features of a class on CIFAR-10, as ccvr.py says; the rest is this project's choice
    "ccvr": {**SAMPLES, "per_class": 2_000, "epochs": 10, "lr": 0.01, "batch_size": 64},
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_the_papers(name: str) -> None:
    assert Experiment(algorithm=name).algorithm.model_dump(exclude={"name"}) == DEFAULTS[name]
