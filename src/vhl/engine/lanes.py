"""Local training of the clients of a round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from vhl.algorithms.base import Algorithm, Client, Server, Update, Vectors, Work
from vhl.engine.plan import client_rng, draw_plan, steps_per_epoch
from vhl.engine.stream import Stream
from vhl.engine.vectors import FlatModel
from vhl.experiment import Training
from vhl.objectives.base import Batch, Objective

MOMENTUM = "engine.momentum"
"""Where a client's state holds its optimiser's momentum; an algorithm's own vectors have no dot."""


@dataclass(frozen=True)
class Task:
    """What local training works with; the same for every client and round."""

    build: Callable[[], nn.Module]
    device: torch.device
    natural: Stream
    virtual: Stream | None
    classes: int
    features: Mapping[str, int]
    """Length of each tap."""
    objective: Objective
    algorithm: Algorithm
    training: Training
    seed: int
    shared: Mapping[str, Tensor] = field(default_factory=dict)
    """The objective's constants."""


@dataclass(frozen=True)
class Job:
    """One client's local training in one round."""

    client: int
    round: int
    samples: np.ndarray
    """Indices into the natural images."""
    rate: float
    state: Vectors
    """The client's own vectors; its momentum among them where that is kept."""


@dataclass(frozen=True)
class Outcome:
    """What came of a job."""

    update: Update
    state: Vectors
    totals: dict[str, Tensor]
    """Sums over steps: each loss term, ``steps``, and hits and rows of both kinds of data."""
    finite: Tensor
    """Whether everything the client would send is finite."""


class Lane:
    """A bound model and the vectors that local training needs; clients run through it one after the other."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.model = FlatModel(task.build(), task.device)
        self.momentum = torch.zeros_like(self.model.parameters)
        self.rate = torch.zeros((), device=task.device)

    def train(self, job: Job, server: Server) -> Outcome:
        """Train one client from the server's model; chance inside the network, as dropout, is its own too."""
        rng = client_rng(self.task.seed, job.round, job.client).spawn(1)[0]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(2**63)))
            return self._train(job, server)

    def _train(self, job: Job, server: Server) -> Outcome:
        model, work = self.model, self._work(job)
        client = Client(server.parameters, server.state, job.state)
        model.load(server.parameters, server.buffers)
        model.module.train()
        self.momentum.copy_(job.state[MOMENTUM]) if MOMENTUM in job.state else self.momentum.zero_()
        self.rate.fill_(job.rate)
        totals: dict[str, Tensor] = {}
        for draws in self._plan(job):
            for name, value in self._step(draws, client).items():
                totals[name] = totals[name] + value if name in totals else value
        message, state = self.task.algorithm.finish(model.parameters, client, work)
        if self.task.training.keep_momentum:
            state = {**state, MOMENTUM: self.momentum.clone()}
        update = Update(job.client, work, model.parameters.clone(), model.buffers.clone(), message)
        return Outcome(update, state, totals, _all_finite(update))

    def _work(self, job: Job) -> Work:
        training = self.task.training
        steps = training.epochs * steps_per_epoch(len(job.samples), training.batch_size)
        return Work(len(job.samples), steps, job.rate, training.momentum)

    def _plan(self, job: Job) -> Iterator[dict[str, Tensor]]:
        """What each step uses, on the device."""
        task = self.task
        arrays = draw_plan(
            client_rng(task.seed, job.round, job.client),
            job.samples,
            batch=task.training.batch_size,
            epochs=task.training.epochs,
            natural=task.natural,
            virtual=task.virtual,
            objective=task.objective,
            classes=task.classes,
            features=task.features,
        )
        tensors = {name: torch.from_numpy(array).to(task.device) for name, array in arrays.items()}
        for step in range(len(arrays["index"])):
            yield {name: tensor[step] for name, tensor in tensors.items()}

    def _step(self, draws: dict[str, Tensor], client: Client) -> dict[str, Tensor]:
        """Gather, augment, forward, objective, backward, corrections, update."""
        model, training, algorithm = self.model, self.task.training, self.task.algorithm
        batch = self._forward(draws)
        terms = self.task.objective.loss(batch)
        model.differentiate(_sum(terms))
        weights, gradient = model.parameters, model.gradient
        if training.weight_decay:
            gradient.add_(weights, alpha=training.weight_decay)
        algorithm.correct_gradient(gradient, weights, client)
        self.momentum.mul_(training.momentum).add_(gradient)
        weights.addcmul_(self.momentum, self.rate, value=-1)
        algorithm.correct_weights(weights, self.rate, client)
        losses = {name: term.detach() for name, term in terms.items()}
        return {**losses, **_count_hits(batch, self.task.objective)}

    def _forward(self, draws: dict[str, Tensor]) -> Batch:
        task = self.task
        images = task.natural.batch(draws["index"], _named(draws, "natural."))
        labels, virtual_labels = task.natural.labels[draws["index"]], None
        if "virtual" in draws:
            assert task.virtual is not None
            images = torch.cat([images, task.virtual.batch(draws["virtual"], _named(draws, "virtual."))])
            virtual_labels = task.virtual.labels[draws["virtual"]]
        features, logits = self.model.module(images)
        return Batch(
            features,
            logits,
            labels,
            draws["weights"],
            task.classes,
            virtual_labels,
            task.shared,
            _named(draws, "draws."),
        )


def _sum(terms: dict[str, Tensor]) -> Tensor:
    first, *rest = terms.values()
    for term in rest:
        first = first + term
    return first


def _named(draws: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in draws.items() if name.startswith(prefix)}


def _count_hits(batch: Batch, objective: Objective) -> dict[str, Tensor]:
    """Right predictions and rows of this step, over all outputs."""
    predicted = batch.logits.detach().argmax(1)
    natural = predicted[: len(batch.labels)] == batch.labels
    hits = {
        "steps": torch.ones((), device=predicted.device),
        "natural_hits": (natural * batch.weights).sum(),
        "natural_rows": batch.weights.sum(),
    }
    if batch.virtual_labels is not None:
        targets = objective.virtual_targets(batch.virtual_labels, batch.classes)
        virtual = predicted[len(batch.labels) :] == targets
        hits["virtual_hits"] = virtual.sum().float()
        hits["virtual_rows"] = torch.full((), float(len(targets)), device=predicted.device)
    return hits


def _all_finite(update: Update) -> Tensor:
    vectors = [update.parameters, update.buffers, *update.message.values()]
    return torch.stack([vector.isfinite().all() for vector in vectors]).all()


def train_clients(lanes: Sequence[Lane], jobs: Sequence[Job], server: Server) -> list[Outcome]:
    """Deal the jobs out to the lanes, longest first, and return the outcomes in the order of the jobs."""
    longest_first = sorted(range(len(jobs)), key=lambda i: -len(jobs[i].samples))
    outcomes = {i: lanes[n % len(lanes)].train(jobs[i], server) for n, i in enumerate(longest_first)}
    return [outcomes[i] for i in range(len(jobs))]
