from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import pytest

from vhl.experiment import Experiment
from vhl.rounds.sampling import sample

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

    :meth:`train` is local training on ½‖w − x‖² in float64, written from the formulas alone.
    """

    def __init__(self, passes: Callable[..., list[np.ndarray]]) -> None:
        self._passes, rng = passes, np.random.default_rng(7)
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
        batches = self._passes(0, round_, client, SIZES[client], BATCH, EPOCHS)
        rate, weights, velocity = LR * DECAY**round_, start, np.zeros(3)
        for batch in batches:
            gradient = weights - self.points[client][batch].mean(0) + WEIGHT_DECAY * weights + pull(weights)
            velocity = MOMENTUM * velocity + gradient
            weights = weights - rate * velocity
            weights = weights - rate * correction(weights)
        return Local(weights, SIZES[client], len(batches), rate)


@pytest.fixture(scope="session")
def federation(passes: Callable[..., list[np.ndarray]]) -> Federation:
    return Federation(passes)


@pytest.fixture(scope="session")
def first_two() -> dict[str, Any]:
    """Settings by which clients 0 and 1 of four take part in each of the first two rounds."""

    def settings(seed: int) -> dict[str, Any]:
        return {"clients_per_round": 2, "seeds": {"sampling": seed}}

    def fits(seed: int) -> bool:
        return all(sample(Experiment(**settings(seed)), round_, 4) == [0, 1] for round_ in range(2))

    return settings(next(filter(fits, count())))
