"""What a round came to, in numbers that need no evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vhl.algorithms.base import Server, Update, weighted_sum
from vhl.experiment import Experiment
from vhl.models.vectors import FlatModel
from vhl.rounds.problem import Problem
from vhl.training.plan import steps_per_epoch
from vhl.training.task import Job, Outcome


def to_host(outcomes: Sequence[Outcome]) -> tuple[list[bool], dict[str, float]]:
    """Which clients are finite, and the totals over those, in one go."""
    names = list(outcomes[0].totals)
    rows = [[outcome.finite, *(outcome.totals[name] for name in names)] for outcome in outcomes]
    table = torch.stack([torch.stack([value.double() for value in row]) for row in rows]).cpu()
    finite = table[:, 0] > 0
    return finite.tolist(), dict(zip(names, table[finite][:, 1:].sum(0).tolist(), strict=True))


def describe_training(
    problem: Problem, jobs: Sequence[Job], updates: Sequence[Update], totals: dict[str, float]
) -> dict[str, Any]:
    """What the clients measured while they trained; ``updates`` are those that count."""
    training, objective = problem.experiment.training, problem.experiment.objective
    steps = sum(update.work.steps for update in updates)
    natural = training.epochs * sum(update.work.samples for update in updates)
    virtual = steps * objective.virtual_rows(training.batch_size)
    hits = totals.get("virtual_hits")
    losses = {name: total for name, total in totals.items() if not name.endswith("_hits")}
    return {
        "loss": {name: total / steps for name, total in losses.items()},
        "train_accuracy": totals["natural_hits"] / natural,
        "virtual_accuracy": None if hits is None else hits / virtual,
        "learning_rate": sum(job.rate for job in jobs) / len(jobs),
        "samples": samples(problem, jobs),
        "compute": problem.compute,
    }


def samples(problem: Problem, jobs: Sequence[Job]) -> int:
    """Images trained on: natural ones once an epoch, virtual ones a step; fillers are not counted.

    A mosaic is one image.
    """
    training = problem.experiment.training
    virtual = problem.experiment.objective.virtual_images(training.batch_size)
    sizes = [len(job.samples) for job in jobs]
    steps = sum(steps_per_epoch(size, training.batch_size) for size in sizes)
    return training.epochs * (sum(sizes) + steps * virtual)


def traffic(model: FlatModel, server: Server, jobs: Sequence[Job], updates: Sequence[Update]) -> int:
    """Bytes sent down and up: models, and the algorithm's own vectors."""
    layout, width = model.layout, model.parameters.element_size()
    both = 2 * (layout.parameter_count + layout.buffer_count)
    extra = (len(server.state) + len(updates[0].message)) * layout.parameter_count
    return width * len(jobs) * (both + extra)


def drift(experiment: Experiment, updates: Sequence[Update]) -> Tensor:
    """1/|S| Σ ‖w̄ − w_i‖ over parameters, w̄ the weighted mean of the client models (section 5.2)."""
    mean = weighted_sum([update.parameters for update in updates], experiment.algorithm.shares(updates))
    return torch.stack([torch.linalg.vector_norm(mean - u.parameters) for u in updates]).mean()
