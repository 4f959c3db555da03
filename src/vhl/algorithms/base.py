"""What a federated algorithm is: a small state machine on vectors, both halves in one file.

A model is two vectors, parameters and buffers. What crosses from server to client is one dict of named
vectors, what crosses back is another with a few scalars: a network can stand between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from vhl.config.component import Component

if TYPE_CHECKING:
    from torch import Tensor

    from vhl.experiment import Training
    from vhl.objectives.base import Batch
    from vhl.virtual.base import Generator

Vectors = dict[str, "Tensor"]

FINAL = "engine.final"
"""Where a server's state holds the parameters to use, if the next round begins with others.

No other name has a dot.
"""


@dataclass(frozen=True)
class Server:
    """The server's model and the vectors its algorithm keeps."""

    parameters: Tensor
    buffers: Tensor
    state: Vectors = field(default_factory=dict)

    @property
    def final(self) -> Tensor:
        """The parameters for whoever uses the model; the next round goes on from :attr:`parameters`."""
        return self.state.get(FINAL, self.parameters)


@dataclass(frozen=True)
class Client:
    """What a client's half of an algorithm sees during local training."""

    start: Tensor
    """The server's parameters at the start of the round."""
    received: Vectors
    """What the server sent beside them."""
    state: Vectors
    """The client's own vectors, kept between its rounds; never changed in place."""
    start_buffers: Tensor
    """The server's buffers at the start of the round: batch-norm statistics."""
    buffers: Tensor
    """The client's own buffers, as they are now."""


@dataclass(frozen=True)
class Work:
    """How much local training a client did."""

    samples: int
    """Natural samples the client holds: its weight in the average."""
    steps: int
    rate: float
    momentum: float

    @property
    def accumulated(self) -> float:
        """FedNova's a = [τ − m(1 − m^τ)/(1 − m)]/(1 − m): how far τ unit gradients carry with momentum m.

        >>> Work(samples=1, steps=2, rate=0.1, momentum=0.5).accumulated  # 1 + (1 + 0.5)
        2.5
        """
        m, steps = self.momentum, self.steps
        return (steps - m * (1 - m**steps) / (1 - m)) / (1 - m)


@dataclass(frozen=True)
class Distillation:
    """Training of the server's average on what the round's client models say of unlabelled images."""

    images: Generator | None
    """Unset is fresh noise every step: standard normal, scaled to [−1, 1] by the batch's extremes."""
    batch: int
    steps: int
    """At most, in a round."""
    lr: float
    clip: float
    """Largest norm of a gradient."""
    check_every: int
    """Steps between looks at the validation images."""
    patience: int
    """Steps without gain after which it ends."""
    keep_average: bool
    """Whether the average itself is a candidate."""


@dataclass(frozen=True)
class Calibration:
    """Training of the classifier alone, on features drawn from a Gaussian for each class."""

    per_class: int
    epochs: int
    lr: float
    batch: int


@dataclass(frozen=True)
class Update:
    """What a client sends back."""

    client: int
    work: Work
    parameters: Tensor
    buffers: Tensor
    message: Vectors
    """The algorithm's own vectors."""


class Algorithm(Component):
    """A federated algorithm; a method states only its difference from FedAvg."""

    def server_state(self, parameters: Tensor) -> Vectors:
        """Vectors that the server keeps between rounds, as they are before the first."""
        return {}

    def sent(self, state: Vectors) -> Vectors:
        """What of the server's vectors goes to the clients with the model: all, unless a method says less."""
        return state

    def client_state(self, server: Server) -> Vectors:
        """Vectors that each client keeps between its rounds, as they are before its first."""
        return {}

    references: ClassVar[tuple[str, ...]] = ()
    """Models whose features every local step needs beside those of the one that is trained, by name."""

    def reference(self, name: str, client: Client) -> tuple[Tensor, Tensor]:
        """Parameters and buffers of one of them."""
        raise NotImplementedError

    def loss(self, batch: Batch, references: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Named terms that the method adds to the objective.

        ``references`` has each one's features, of tap ``last``, for the natural rows; it is in evaluation
        mode and gets no gradient.
        """
        return {}

    def correct_gradient(self, gradient: Tensor, weights: Tensor, client: Client) -> None:
        """Change the gradient in place, before the optimiser; called every local step."""

    def correct_weights(self, weights: Tensor, rate: Tensor, client: Client) -> None:
        """Change the weights in place, after the optimiser; called every local step."""

    def finish(self, weights: Tensor, client: Client, work: Work) -> tuple[Vectors, Vectors]:
        """After local training: what to send beside the model, and the client's new state."""
        return {}, client.state

    def shares(self, updates: Sequence[Update]) -> list[float]:
        """The weight of each update in an average; they sum to 1."""
        raise NotImplementedError

    def aggregate(self, server: Server, updates: Sequence[Update], clients: int) -> tuple[Tensor, Vectors]:
        """The server's new parameters and state from the updates, in client order, of ``clients`` in all."""
        raise NotImplementedError

    ends: ClassVar[bool] = False
    """Whether what comes after the last round makes another model than the rounds before it."""

    @property
    def distillation(self) -> Distillation | None:
        """A stage on the server after :meth:`aggregate`, every round."""
        return None

    @property
    def calibration(self) -> Calibration | None:
        """A stage after the last round."""
        return None

    def notes(self, training: Training) -> list[str]:
        """Sentences a user should read before training so."""
        return []


def weighted_sum(vectors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Σ w_i v_i, summed in the order given, so that the result depends on nothing else."""
    total = vectors[0] * weights[0]
    for vector, weight in zip(vectors[1:], weights[1:], strict=True):
        total.add_(vector, alpha=weight)
    return total
