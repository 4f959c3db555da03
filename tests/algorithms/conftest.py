from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

Correction = Callable[[np.ndarray], np.ndarray | float]
SIZES = (5, 2, 9, 3)
LR, DECAY, MOMENTUM, WEIGHT_DECAY = 0.1, 0.9, 0.9, 0.01
EPOCHS, BATCH = 2, 4


@dataclass(frozen=True)
class Local:
    """What a client's local training gave."""

    weights: np.ndarray
    size: int
    steps: int
    rate: float

    @property
    def accumulated(self) -> float:
        """Σ over steps of 1 + m + … + m^(step): FedNova's a, by its definition."""
        return sum(MOMENTUM**power for step in range(self.steps) for power in range(step + 1))


def _nothing(weights: np.ndarray) -> float:
    return 0.0


class Federation:
    """Four clients with 5, 2, 9 and 3 random points (2, 1, 3 and 1 batches an epoch), three of them a round.

    :meth:`train` is local training on ½‖w − x‖² in float64, written from the formulas alone; the batches are
    the passes drawn from ``SeedSequence(seed, spawn_key=(round, client))``.
    """

    def __init__(self) -> None:
        rng = np.random.default_rng(7)
        self.points = [rng.integers(0, 256, (size, 3)) for size in SIZES]
        self.settings = {
            "clients_per_round": 3,
            "training": {
                "lr": LR,
                "lr_decay": DECAY,
                "momentum": MOMENTUM,
                "weight_decay": WEIGHT_DECAY,
                "epochs": EPOCHS,
                "batch_size": BATCH,
            },
        }

    def train(
        self,
        client: int,
        round_: int,
        start: np.ndarray,
        pull: Correction = _nothing,
        correction: Correction = _nothing,
    ) -> Local:
        """``pull(w)`` joins each gradient; ``correction(w)`` times the rate is taken off after each step."""
        rng = np.random.default_rng(np.random.SeedSequence(0, spawn_key=(round_, client)))
        orders = [rng.permutation(SIZES[client]) for _ in range(EPOCHS)]
        rate, weights, velocity, steps = LR * DECAY**round_, start, np.zeros(3), 0
        for order in orders:
            for first in range(0, len(order), BATCH):
                mean = self.points[client][order[first : first + BATCH]].mean(0)
                gradient = weights - mean + WEIGHT_DECAY * weights + pull(weights)
                velocity = MOMENTUM * velocity + gradient
                weights = weights - rate * velocity
                weights = weights - rate * correction(weights)
                steps += 1
        return Local(weights, SIZES[client], steps, rate)


@pytest.fixture(scope="session")
def federation() -> Federation:
    return Federation()
