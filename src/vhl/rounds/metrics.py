"""What a round came to, in numbers that need no evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vhl.algorithms.base import Server, Update, weighted_sum
from vhl.experiment import Experiment
from vhl.models.vectors import FlatModel
from vhl.rounds.clients import Order
from vhl.rounds.setup import Setup
from vhl.training.schedule import steps_per_epoch
from vhl.training.task import Outcome


def to_host(outcomes: Sequence[Outcome]) -> tuple[list[bool], dict[str, float]]:
    """Which clients are finite, and the totals over those, in one go."""
    names = list(outcomes[0].totals)
    rows = [[outcome.finite, *(outcome.totals[name] for name in names)] for outcome in outcomes]
    table = torch.stack([torch.stack([value.double() for value in row]) for row in rows]).cpu()
    finite = table[:, 0] > 0
    return finite.tolist(), dict(zip(names, table[finite][:, 1:].sum(0).tolist(), strict=True))


def describe_training(
    setup: Setup, orders: Sequence[Order], updates: Sequence[Update], totals: dict[str, float]
) -> dict[str, Any]:
    """What the clients measured while they trained; ``updates`` are those that count."""
    training = setup.experiment.training
    steps = sum(update.work.steps for update in updates)
    natural = training.epochs * sum(update.work.samples for update in updates)
    virtual = setup.experiment.objective.virtual_images(training.batch_size)
    hits = totals.get("virtual_hits")
    losses = {name: total for name, total in totals.items() if not name.endswith("_hits")}
    return {
        "loss": {name: total / steps for name, total in losses.items()},
        "train_accuracy": totals["natural_hits"] / natural,
        "virtual_accuracy": None if hits is None or virtual is None else hits / (steps * virtual.rows),
        "learning_rate": sum(order.rate for order in orders) / len(orders),
        "samples": samples(setup, orders),
        "compute": setup.compute,
    }


def samples(setup: Setup, orders: Sequence[Order]) -> int:
    """Images trained on: natural ones once an epoch, virtual ones a step; fillers are not counted.

    A mosaic is one image.
    """
    training = setup.experiment.training
    virtual = setup.experiment.objective.virtual_images(training.batch_size)
    sizes = [setup.sizes[order.client] for order in orders]
    steps = sum(steps_per_epoch(size, training.batch_size) for size in sizes)
    return training.epochs * (sum(sizes) + steps * (0 if virtual is None else virtual.places))


def traffic(model: FlatModel, server: Server, orders: Sequence[Order], updates: Sequence[Update]) -> int:
    """Bytes sent down and up: models, and the algorithm's own vectors."""
    layout, width = model.layout, model.parameters.element_size()
    both = 2 * (layout.parameter_count + layout.buffer_count)
    extra = (len(server.state) + len(updates[0].message)) * layout.parameter_count
    return width * len(orders) * (both + extra)


def drift(experiment: Experiment, updates: Sequence[Update]) -> Tensor:
    """1/|S| Σ ‖w̄ − w_i‖ over parameters, w̄ the weighted mean of the client models (section 5.2)."""
    mean = weighted_sum([update.parameters for update in updates], experiment.algorithm.shares(updates))
    return torch.stack([torch.linalg.vector_norm(mean - u.parameters) for u in updates]).mean()
