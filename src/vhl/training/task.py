"""What clients have to do: the task that all share, one client's job, and what comes of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from vhl.algorithms.base import Algorithm, Update, Vectors, Work
from vhl.config.sections import Training
from vhl.objectives.base import Objective
from vhl.training.plan import client_rng, draw_plan, steps_per_epoch
from vhl.training.precision import Numerics
from vhl.training.stream import Stream

MOMENTUM = "engine.momentum"
"""Where a client's state holds its optimiser's momentum; an algorithm's own vectors have no dot."""


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
    """Sums over steps: each loss term, and hits of both kinds of data."""
    finite: Tensor
    """Whether everything the client would send is finite."""


@dataclass(frozen=True)
class Task:
    """What local training works with; the same for every client and round."""

    build: Callable[[], nn.Module]
    network: str
    """What ``build`` builds, in words that are equal for equal networks."""
    numerics: Numerics
    natural: Stream
    virtual: Stream | None
    classes: int
    features: Mapping[str, int]
    """Length of each tap."""
    objective: Objective
    algorithm: Algorithm
    training: Training
    seed: int
    longest: int
    """Samples of the client that has most."""
    shared: Mapping[str, Tensor] = field(default_factory=dict)
    """The objective's constants."""

    @property
    def device(self) -> torch.device:
        return self.numerics.device

    @cached_property
    def signature(self) -> str:
        """Tasks of equal signature take the same steps: seeds and learning rates may differ."""
        training = self.training.model_dump(exclude={"lr", "lr_decay", "decay_per", "lr_drops"})
        parts = [self.objective.model_dump_json(), self.algorithm.model_dump_json(), json.dumps(training)]
        streams = [str(id(self.natural)), str(id(self.virtual))]
        return "\n".join([self.network, str(self.numerics), str(self.longest), *parts, *streams])

    def steps(self, samples: int) -> int:
        """Steps of a client with this many samples, in a round."""
        return self.training.epochs * steps_per_epoch(samples, self.training.batch_size)

    def work(self, job: Job) -> Work:
        samples = len(job.samples)
        return Work(samples, self.steps(samples), job.rate, self.training.momentum)

    def plan(self, round_: int, client: int, samples: np.ndarray) -> dict[str, np.ndarray]:
        """What each step of the client uses, by name."""
        return draw_plan(
            client_rng(self.seed, round_, client),
            samples,
            batch=self.training.batch_size,
            epochs=self.training.epochs,
            natural=self.natural,
            virtual=self.virtual,
            objective=self.objective,
            classes=self.classes,
            features=self.features,
        )

    def chance(self, job: Job) -> int:
        """A seed for chance inside the network, as dropout: the client's own too."""
        return int(client_rng(self.seed, job.round, job.client).spawn(1)[0].integers(2**63))
