"""What a federated algorithm is: a small state machine on vectors, both halves in one file.

A model is two vectors, parameters and buffers. What crosses from server to client is one dict of named
vectors, what crosses back is another with a few scalars: a network can stand between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from vhl.config.component import Component

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    from vhl.config.sections import Training
    from vhl.models.vectors import FlatModel
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
class Update:
    """What a client sends back."""

    client: int
    work: Work
    parameters: Tensor
    buffers: Tensor
    message: Vectors
    """The algorithm's own vectors."""


class Stage(Protocol):
    """What a method has on the server after a round.

    CONTRIBUTING.md has a small method that uses it; ``feddf.py`` and ``ccvr.py`` are larger ones.
    """

    before: Server
    """The server as the round began."""
    round: int
    """Rounds done, this one included."""
    last: bool
    """Whether this was the last round."""
    frozen: bool
    """Whether batch norm is done with fixed statistics by now."""
    device: torch.device
    dtype: torch.dtype
    kept: dict[str, Any]
    """What the method makes in :meth:`Algorithm.prepare` and uses every round; it is not saved."""

    def generator(self) -> np.random.Generator:
        """NumPy's random numbers of this round."""

    def chance(self, number: int) -> AbstractContextManager[None]:
        """Inside, PyTorch's own random numbers, as dropout's, are those of this round and ``number``."""

    def model(self) -> FlatModel:
        """A network bound to vectors of its own.

        To look at a model, ``load`` it. To train, ``differentiate`` a loss, change ``parameters`` in place by
        the ``gradient``, and ``refresh`` what the layers see of them.
        """

    def training(self, model: FlatModel, *, statistics: bool = True) -> None:
        """Put the network into training mode; its batch-norm statistics then follow the images it sees.

        Without ``statistics``, and where clients train with fixed ones by now, they stay as they are.
        """

    def logits(self, model: FlatModel, images: Tensor) -> Tensor:
        """What a network says of images, in the run's precision."""

    def all_logits(self, models: Sequence[FlatModel], images: Tensor) -> list[Tensor]:
        """The same of several networks, without gradients; on a GPU they all answer at once."""

    def images(self, generator: Generator | None, batch: int, most: int) -> Images:
        """Batches of a generator's images, or else of the run's own, normalised as what clients train on.

        At most so many steps are drawn at once.
        """

    def noise(self, batch: int) -> Tensor:
        """A batch of standard normal numbers of the images' shape."""

    def static(self, work: Callable[[], None], what: str) -> Callable[[], None]:
        """The same work, but faster on a GPU: rehearsed and recorded; ``what`` names it in a note.

        Nobody must use it. See :mod:`vhl.training.static`.
        """

    def working(self) -> AbstractContextManager[None]:
        """Where all work of :meth:`Algorithm.after_round` is done: on a GPU that is a stream of its own."""

    def can_validate(self) -> bool:
        """Whether the server has validation images."""

    def accuracy(self, model: FlatModel) -> float:
        """On the validation images."""

    def moments(self, server: Server) -> Vectors:
        """Class by class how many training images all clients have (``counts``), the sum of the features that
        this model makes of them (``sums``) and of their products (``products``)."""

    def check_linear_head(self, whose: str) -> None:
        """Refuse a network whose classifier is no linear layer on the features ``last``."""

    def linear_head(self, parameters: Tensor, buffers: Tensor) -> tuple[Tensor, Tensor]:
        """The classifier's weight and bias, as views of a model's vectors."""

    def report(self, samples: int = 0, **numbers: float) -> None:
        """Put numbers into the round's record, under ``server``, and count images that were trained on."""


class Images(Protocol):
    """Batches of images at a fixed place."""

    def draw(self, first: int, count: int) -> None:
        """Choose the images of so many steps, of which the first has this number in the round."""

    def next(self) -> tuple[Tensor, Tensor]:
        """The next step's images and their labels in the generator's own classes."""


class Algorithm(Component):
    """A federated algorithm; a method states only its difference from FedAvg."""

    room: ClassVar[str] = "algorithms"

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

    def prepare(self, stage: Stage) -> None:
        """Before the first round: refuse what :meth:`after_round` could not do."""

    def after_round(self, server: Server, updates: Sequence[Update], stage: Stage) -> Server:
        """What the server does with its average before the next round, and with what (``stage``)."""
        return server

    def notes(self, training: Training) -> list[str]:
        """Sentences a user should read before training so."""
        return []


def weighted_sum(vectors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Σ w_i v_i, summed in the order given, so that the result depends on nothing else."""
    total = vectors[0] * weights[0]
    for vector, weight in zip(vectors[1:], weights[1:], strict=True):
        total.add_(vector, alpha=weight)
    return total
