"""What clients have to do: the task that all share, one client's job, and what comes of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from vhl import chance
from vhl.algorithms.base import Algorithm, Update, Vectors, Work
from vhl.chance import Purpose
from vhl.config.sections import Training
from vhl.objectives.base import Objective
from vhl.objectives.virtual_batch import VirtualBatch
from vhl.training.precision import Precision
from vhl.training.schedule import (
    Round,
    Schedule,
    natural_schedules,
    steps_per_epoch,
    virtual_schedules,
)
from vhl.training.streams import Stream

MOMENTUM = "engine.momentum"
"""Where a client's state holds its optimiser's momentum; an algorithm's own vectors have no dot."""


@dataclass(frozen=True)
class Job(Round):
    """One client's local training in one round."""

    rate: float
    state: Vectors
    """The client's own vectors; its momentum among them where that is kept."""


@dataclass(frozen=True)
class Outcome:
    """What came of a job."""

    update: Update
    state: Vectors
    totals: dict[str, Tensor]
    """Sums over steps: each loss term, and hits of both kinds of data."""
    finite: Tensor
    """Whether everything the client would send is finite."""


@dataclass(frozen=True)
class Task:
    """What local training works with; the same for every client and round."""

    build: Callable[[], nn.Module]
    network: str
    """What ``build`` builds, in words that are equal for equal networks."""
    precision: Precision
    natural: Stream
    virtual: Stream | None
    classes: int
    features: Mapping[str, int]
    """Length of each tap."""
    objective: Objective
    algorithm: Algorithm
    training: Training
    seed: int
    sizes: tuple[int, ...]
    """Samples of each client."""
    shared: Mapping[str, Tensor] = field(default_factory=dict)
    """The objective's constants."""

    @property
    def device(self) -> torch.device:
        return self.precision.device

    @property
    def batch(self) -> int:
        return self.training.batch_size

    @cached_property
    def virtual_batch(self) -> VirtualBatch | None:
        """The virtual images of each step."""
        return self.objective.virtual_images(self.batch) if self.virtual is not None else None

    @cached_property
    def longest(self) -> int:
        """Steps of the client that has most samples."""
        return self.steps(max(self.sizes))

    @cached_property
    def has_short_batches(self) -> bool:
        """Whether some client's last batch of an epoch is not whole."""
        return any(size % self.batch for size in self.sizes)

    @cached_property
    def has_whole_batches(self) -> bool:
        return any(size >= self.batch for size in self.sizes)

    @cached_property
    def signature(self) -> str:
        """Tasks of equal signature take the same steps: seeds and learning rates may differ."""
        training = self.training.model_dump(exclude={"lr", "lr_decay", "decay_per", "lr_drops"})
        parts = [self.objective.model_dump_json(), self.algorithm.model_dump_json(), json.dumps(training)]
        streams = [str(id(self.natural)), str(id(self.virtual))]
        lengths = [str(self.longest), str(self.has_short_batches), str(self.has_whole_batches)]
        return "\n".join([self.network, str(self.precision), *lengths, *parts, *streams])

    def steps(self, samples: int) -> int:
        """Steps of a client with this many samples, in a round."""
        return self.training.epochs * steps_per_epoch(samples, self.batch)

    def rows(self, samples: int) -> list[int]:
        """How many samples each step of such a client uses: an epoch's last may use fewer than a batch."""
        epoch = [min(self.batch, samples - start) for start in range(0, samples, self.batch)]
        return epoch * self.training.epochs

    def schedules(self, jobs: Sequence[Job]) -> list[Schedule]:
        """What each step of each job uses; all jobs are of one round."""
        natural = natural_schedules(self.seed, jobs, self.natural, self.batch, self.training.epochs)
        if self.virtual is None or self.virtual_batch is None:
            return natural
        order = self.virtual.shuffled(self.seed, Purpose.VIRTUAL_ORDER, jobs[0].round)
        steps = [self.steps(len(job.samples)) for job in jobs]
        rows = self.virtual_batch.rows
        virtual = virtual_schedules(self.seed, jobs, self.virtual, order, rows, steps)
        return [own | more for own, more in zip(natural, virtual, strict=True)]

    def work(self, job: Job) -> Work:
        samples = len(job.samples)
        return Work(samples, self.steps(samples), job.rate, self.training.momentum)

    def network_seed(self, job: Job) -> int:
        """A seed for chance inside the network, as dropout: the client's own too."""
        return chance.torch_seed(self.seed, job.round, job.client)
