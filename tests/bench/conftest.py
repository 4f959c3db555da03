from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from vhl.bench.work import Work
from vhl.models.cnn import CNN


@pytest.fixture(scope="session")
def make_work() -> Callable[..., Work]:
    """Thirty images of 8×8 pixels at clients of 6, 9 and 15, and a small network with batch norm.

    Each of four classes has a colour of its own, under much noise.
    """
    rng = np.random.default_rng(0)
    labels, colours = rng.integers(0, 4, 50), rng.integers(-50, 50, (4, 3))
    noisy = rng.integers(50, 206, (50, 8, 8, 3)) + colours[labels][:, None, None]
    images, parts = noisy.astype(np.uint8), np.split(rng.permutation(30), [6, 15])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = CNN(width=4).build(4, 3, (8, 8))

    def make(**changes: Any) -> Work:
        fields: dict[str, Any] = {
            "images": images[:30],
            "labels": labels[:30],
            "parts": parts,
            "test_images": images[30:],
            "test_labels": labels[30:],
            "mean": np.array([0.4, 0.5, 0.6]),
            "std": np.array([0.2, 0.25, 0.3]),
            "padding": 0,
            "flip": False,
            "build": partial(copy.deepcopy, network),
            "batch_size": 128,
            "epochs": 1,
            "lr": 0.1,
            "momentum": 0.9,
            "weight_decay": 0.001,
            "clients_per_round": 3,
            "seed": 0,
            "device": torch.device("cpu"),
            "tf32": False,
        }
        return Work(**{**fields, **changes})

    return make
