"""One step of local training, as functions that work on tensors at fixed places: they can be captured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vhl.algorithms.base import Client
from vhl.engine.compiler import compiled
from vhl.engine.task import Task
from vhl.engine.vectors import FlatModel
from vhl.models._network import fuse
from vhl.objectives.base import Batch

Output = tuple[Mapping[str, Tensor], Tensor]
"""Features by tap, and logits."""


@dataclass(frozen=True)
class Pieces:
    """What a step is made of; each may be compiled, and then serves all lanes."""

    gather: Callable[[Mapping[str, Tensor], Tensor], tuple[Tensor, dict[str, Tensor]]]
    judge: Callable[[Mapping[str, Tensor], Tensor, Mapping[str, Tensor]], tuple[Tensor, dict[str, Tensor]]]
    update: Callable[[FlatModel, Tensor, Tensor, Tensor, Client], None]
    network: Callable[[nn.Module], Callable[[Tensor], Output]]
    """Makes of a network what the step calls."""


def pieces(task: Task) -> Pieces:
    """The parts of a step of this task."""

    def gather(plan: Mapping[str, Tensor], counter: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The images of step number ``counter``, natural ones first, and what else the step uses by name."""
        draws = {name: rows.index_select(0, counter)[0] for name, rows in plan.items()}
        index = draws.pop("index")
        images = task.natural.batch(index, _named(draws, "natural."))
        draws["labels"] = task.natural.labels[index]
        if "virtual" in draws:
            assert task.virtual is not None
            index = draws.pop("virtual")
            images = torch.cat([images, task.virtual.batch(index, _named(draws, "virtual."))])
            draws["virtual_labels"] = task.virtual.labels[index]
        return images.to(task.numerics.compute_dtype, memory_format=torch.channels_last), draws

    def judge(
        features: Mapping[str, Tensor], logits: Tensor, draws: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss, and what is added up over steps: its terms, and hits and rows of both kinds of data."""
        batch = Batch(
            features,
            logits.to(task.numerics.dtype),
            draws["labels"],
            draws["weights"],
            task.classes,
            draws.get("virtual_labels"),
            task.shared,
            _named(draws, "draws."),
        )
        terms = task.objective.loss(batch)
        losses = {name: term.detach() for name, term in terms.items()}
        return _sum(terms), {**losses, **_count_hits(batch, task)}

    def update(model: FlatModel, momentum: Tensor, rate: Tensor, counter: Tensor, client: Client) -> None:
        """SGD with momentum and the algorithm's corrections, in place; then on to the next step."""
        training, algorithm = task.training, task.algorithm
        weights, gradient = model.parameters, model.gradient
        if training.weight_decay:
            gradient.add_(weights, alpha=training.weight_decay)
        algorithm.correct_gradient(gradient, weights, client)
        momentum.mul_(training.momentum).add_(gradient)
        weights.addcmul_(momentum, rate, value=-1)
        algorithm.correct_weights(weights, rate, client)
        model.refresh()
        counter.add_(1)

    return Pieces(gather, judge, update, lambda module: module)


def compiled_pieces(task: Task) -> Pieces:
    """The same, with operations fused: by kernels of ours in a network of ours, by the compiler elsewhere."""
    plain = pieces(task)
    return Pieces(
        compiled(plain.gather),
        compiled(plain.judge),
        compiled(plain.update),
        lambda module: module if fuse(module) else compiled(module),
    )


def _named(draws: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in draws.items() if name.startswith(prefix)}


def _sum(terms: dict[str, Tensor]) -> Tensor:
    first, *rest = terms.values()
    for term in rest:
        first = first + term
    return first


def _count_hits(batch: Batch, task: Task) -> dict[str, Tensor]:
    """Right predictions and rows of this step, over all outputs."""
    predicted = batch.logits.detach().argmax(1)
    natural = predicted[: len(batch.labels)] == batch.labels
    hits = {
        "steps": torch.ones((), device=predicted.device),
        "natural_hits": (natural * batch.weights).sum(),
        "natural_rows": batch.weights.sum(),
    }
    if batch.virtual_labels is not None:
        targets = task.objective.virtual_targets(batch.virtual_labels, batch.classes)
        virtual = predicted[len(batch.labels) :] == targets
        hits["virtual_hits"] = virtual.sum().float()
        hits["virtual_rows"] = torch.full((), float(len(targets)), device=predicted.device)
    return hits
