"""One step of local training, in pieces that work on tensors at fixed places: they can be captured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vhl.algorithms.base import Client
from vhl.errors import VHLError
from vhl.models.vectors import FlatModel
from vhl.objectives.base import Batch
from vhl.training.task import Task

Draws = dict[str, Tensor]
Plan = Mapping[str, Tensor]
"""What each step of a client uses, by name; the steps come first."""
Output = tuple[Mapping[str, Tensor], Tensor]
"""Features by tap, and logits."""


@dataclass(frozen=True)
class Pieces:
    """What a step is made of; there may be several ways to do each."""

    gather: Callable[[Plan, Tensor], tuple[Tensor, Draws]]
    """The images of one step of a plan, natural ones first, and what else the step uses by name."""
    network: Callable[[nn.Module], Callable[..., Output]]
    """Makes of a network what the step calls."""
    judge: Callable[[Mapping[str, Tensor], Tensor, Draws], tuple[Tensor, Draws]]
    """The loss, and what is added up over steps: its terms, and right predictions of both kinds."""
    update: Callable[[FlatModel, Tensor, Tensor, Tensor, Client], None]
    """Gradient descent with the algorithm's corrections, in place; then on to the next step."""


def plain_pieces(task: Task) -> Pieces:
    """The pieces as operations of PyTorch: what every other way has to agree with."""

    def gather(plan: Plan, counter: Tensor) -> tuple[Tensor, Draws]:
        draws = {name: rows.index_select(0, counter)[0] for name, rows in plan.items()}
        index = draws.pop("index")
        images = task.natural.batch(index, named(draws, "natural."))
        draws["labels"] = task.natural.labels[index]
        if "virtual" in draws:
            assert task.virtual is not None
            index = draws.pop("virtual")
            images = torch.cat([images, task.virtual.batch(index, named(draws, "virtual."))])
            draws["virtual_labels"] = task.virtual.labels[index]
        return images.to(task.numerics.compute_dtype, memory_format=torch.channels_last), draws

    def judge(features: Mapping[str, Tensor], logits: Tensor, draws: Draws) -> tuple[Tensor, Draws]:
        batch = Batch(
            features,
            logits.to(task.numerics.dtype),
            draws["labels"],
            draws["weights"],
            task.classes,
            draws.get("virtual_labels"),
            task.shared,
            named(draws, "draws."),
        )
        terms = _checked(task.objective.loss(batch), task.objective.name)
        terms |= task.algorithm.loss(batch, named(draws, "reference."))
        losses = {name: term.detach() for name, term in terms.items()}
        return _sum(terms), {**losses, **_count_hits(batch, task)}

    def update(model: FlatModel, momentum: Tensor, rate: Tensor, counter: Tensor, client: Client) -> None:
        training, algorithm = task.training, task.algorithm
        weights, gradient = model.parameters, model.gradient
        algorithm.correct_gradient(gradient, weights, client)
        if training.weight_decay:
            gradient.add_(weights, alpha=training.weight_decay)
        momentum.mul_(training.momentum).add_(gradient)
        weights.addcmul_(momentum, rate, value=-1)
        algorithm.correct_weights(weights, rate, client)
        model.refresh()
        counter.add_(1)

    return Pieces(gather, lambda module: module, judge, update)


def named(draws: Mapping[str, Tensor], prefix: str) -> Draws:
    """What is called ``prefix`` and something, by that something."""
    return {name.removeprefix(prefix): value for name, value in draws.items() if name.startswith(prefix)}


def _checked(terms: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """An objective may be anyone's: what it returns are numbers by name."""
    numbers = isinstance(terms, dict) and all(isinstance(t, Tensor) and not t.dim() for t in terms.values())
    if not numbers or not terms:
        raise VHLError(
            f"{name}: loss must return its terms by name, tensors of one number each, as "
            "{'natural': cross_entropy(...)}."
        )
    return dict(terms)


def _sum(terms: dict[str, Tensor]) -> Tensor:
    first, *rest = terms.values()
    for term in rest:
        first = first + term
    return first


def _count_hits(batch: Batch, task: Task) -> Draws:
    """Right predictions of this step, over all outputs."""
    predicted = batch.logits.detach().argmax(1)
    natural = predicted[: len(batch.labels)] == batch.labels
    hits = {"natural_hits": (natural * batch.weights).sum()}
    if batch.virtual_labels is not None:
        targets = task.objective.virtual_targets(batch.virtual_labels, batch.classes)
        hits["virtual_hits"] = (predicted[len(batch.labels) :] == targets).sum()
    return hits
