"""All random choices of one client's local training, drawn ahead from (seed, round, client)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vhl.objectives.base import Objective
from vhl.training.stream import Stream


def client_rng(seed: int, round_: int, client: int) -> np.random.Generator:
    """The client's chance in this round: the same on every device, in any order, after any resume."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(round_, client)))


def steps_per_epoch(samples: int, batch: int) -> int:
    return -(-samples // batch)


def draw_plan(
    rng: np.random.Generator,
    samples: np.ndarray,
    *,
    batch: int,
    epochs: int,
    natural: Stream,
    virtual: Stream | None,
    objective: Objective,
    classes: int,
    features: Mapping[str, int],
) -> dict[str, np.ndarray]:
    """What each step uses, by name; every array has the steps first.

    Natural choices come first, so that runs with and without virtual data see the same natural batches.
    """
    steps = epochs * steps_per_epoch(len(samples), batch)
    index, weights = _natural_order(rng, samples, batch, epochs)
    plan = {"index": index, "weights": weights}
    plan |= {f"natural.{k}": v for k, v in natural.draw(rng, index.shape).items()}
    virtual_rows = objective.virtual_rows(batch)
    if virtual is not None and virtual_rows:
        rows = (steps, virtual_rows)
        plan["virtual"] = virtual.order(rng, steps * virtual_rows).reshape(rows)
        plan |= {f"virtual.{k}": v for k, v in virtual.draw(rng, rows).items()}
    plan |= {f"draws.{k}": v for k, v in objective.draws(rng, steps, batch, classes, features).items()}
    return plan


def _natural_order(
    rng: np.random.Generator, samples: np.ndarray, batch: int, epochs: int
) -> tuple[np.ndarray, np.ndarray]:
    """Each epoch is a shuffled pass; its last batch is filled up from its start by samples of weight 0."""
    length = steps_per_epoch(len(samples), batch) * batch
    orders = [np.resize(rng.permutation(samples), length) for _ in range(epochs)]
    weights = np.tile((np.arange(length) < len(samples)).astype(np.float32), epochs)
    return np.concatenate(orders).reshape(-1, batch), weights.reshape(-1, batch)
