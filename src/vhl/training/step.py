"""One step of local training: gather images, pass them through the network, judge, descend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from vhl.algorithms.base import Client
from vhl.chance import normals
from vhl.errors import VHLError
from vhl.models.vectors import FlatModel
from vhl.objectives.base import Batch
from vhl.objectives.virtual_batch import VirtualBatch
from vhl.training.schedule import Schedule
from vhl.training.task import Task

Values = dict[str, Tensor]
Output = tuple[Mapping[str, Tensor], Tensor]
"""Features by tap, and logits."""


class Step:
    """The four parts of a step as plain operations of PyTorch: what every faster way has to agree with.

    They work on tensors at fixed places and ask the host for nothing, so that they can be recorded.
    """

    def __init__(self, task: Task) -> None:
        self.task = task

    def network(self, module: nn.Module) -> Callable[..., Output]:
        """What the step calls for a network."""
        return module

    def gather(self, schedule: Schedule, step: Tensor, rows: int | None) -> tuple[Tensor, Values]:
        """The images of a step, natural ones first, and what else it uses, by name.

        With ``rows`` only so many of the natural samples: those that are no fillers.
        """
        task = self.task
        own = {name: values.index_select(0, step)[0] for name, values in schedule.items()}
        own = {name: v if name.startswith("virtual") else v[:rows] for name, v in own.items()}
        images = task.natural.batch(own["index"], named(own, "natural."))
        used = {"labels": task.natural.labels[own["index"]], "weights": own["weights"]}
        if task.virtual is not None and "virtual" in own:
            images = torch.cat([images, task.virtual.batch(own["virtual"], named(own, "virtual."))])
            used["virtual_labels"] = task.virtual.labels[own["virtual"]]
        return images.to(task.precision.compute_dtype, memory_format=torch.channels_last), used

    def loss(
        self, features: Mapping[str, Tensor], logits: Tensor, used: Values, where: Tensor, step: Tensor
    ) -> tuple[Tensor, Values]:
        """The loss, and what is added up over steps: its terms, and right predictions of both kinds.

        ``where`` holds seed, round and client: with the step, the place of the objective's own chance.
        """
        task = self.task
        logits = logits.to(task.precision.dtype)
        seed, round_, client = where
        batch = Batch(
            features,
            logits,
            used["labels"],
            used["weights"],
            task.classes,
            used.get("virtual_labels"),
            task.shared,
            task.batch,
            partial(normals, seed, round_, client, step, like=logits),
        )
        terms = _checked(task.objective.loss(batch), task.objective.name)
        terms |= task.algorithm.loss(batch, named(used, "reference."))
        losses = {name: term.detach() for name, term in terms.items()}
        first, *rest = terms.values()
        return sum(rest, start=first), {**losses, **_count_hits(batch, task)}

    def update(self, model: FlatModel, momentum: Tensor, rate: Tensor, step: Tensor, client: Client) -> None:
        """Gradient descent with the algorithm's corrections, in place; then on to the next step."""
        training, algorithm = self.task.training, self.task.algorithm
        weights, gradient = model.parameters, model.gradient
        algorithm.correct_gradient(gradient, weights, client)
        if training.weight_decay:
            gradient.add_(weights, alpha=training.weight_decay)
        momentum.mul_(training.momentum).add_(gradient)
        weights.addcmul_(momentum, rate, value=-1)
        algorithm.correct_weights(weights, rate, client)
        model.refresh()
        step.add_(1)


def named(values: Mapping[str, Tensor], prefix: str) -> Values:
    """What is called ``prefix`` and something, by that something."""
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def statistics_weights(natural: Tensor, virtual: VirtualBatch | None) -> Tensor:
    """How much each image counts in batch-norm statistics, natural ones first; the sum is 1.

    ``natural`` is 1 for each natural image and 0 for a filler, which so is kept out of the statistics. By
    number every image that is there counts the same; with a share s a natural one counts (1 − s)/n and a
    virtual one s/n_v.
    """
    if virtual is None:
        return natural / natural.sum()
    ones = natural.new_ones(virtual.places)
    if virtual.share is None:
        return torch.cat([natural, ones]) / (natural.sum() + virtual.places)
    share = virtual.share
    return torch.cat([natural * ((1 - share) / natural.sum()), ones * (share / virtual.places)])


def _checked(terms: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """An objective may be anyone's: what it returns are numbers by name."""
    numbers = isinstance(terms, dict) and all(isinstance(t, Tensor) and not t.dim() for t in terms.values())
    if not numbers or not terms:
        raise VHLError(
            f"{name}: loss must return its terms by name, tensors of one number each, as "
            "{'natural': cross_entropy(...)}."
        )
    return dict(terms)


def _count_hits(batch: Batch, task: Task) -> Values:
    """Right predictions of this step, over all outputs."""
    predicted = batch.logits.detach().argmax(1)
    natural = predicted[: len(batch.labels)] == batch.labels
    hits = [(natural * batch.weights).sum()]
    if batch.virtual_labels is not None:
        targets = task.objective.virtual_targets(batch.virtual_labels, batch.classes)
        hits.append((predicted[len(batch.labels) :] == targets).sum())
    return dict(zip(hit_names(batch.virtual_labels is not None), hits, strict=True))


def hit_names(with_virtual: bool) -> list[str]:
    """What right predictions of natural and of virtual images are called among what is added up."""
    return ["natural_hits", "virtual_hits"] if with_virtual else ["natural_hits"]
