"""Where clients are: what the round loop asks of them, whoever they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from vhl.algorithms.base import Server, Vectors
from vhl.rounds.evaluation import Pending
from vhl.training.task import Outcome


@dataclass(frozen=True)
class Order:
    """What one client shall do in a round: train from the server's model, at this rate."""

    client: int
    round: int
    """Rounds done before it."""
    rate: float
    state: Vectors
    """The client's own vectors, or what stands for them here."""


class Flight(Protocol):
    """Local training that is under way."""

    def poll(self) -> list[Outcome] | None:
        """Go on with the work or look how far it is; once all is there, what came of the orders, in order.

        Clients that did not answer well are left out; where none is left, this raises.
        """


class Clients(Protocol):
    """Lanes of this machine (:mod:`vhl.rounds.local`) or sites behind a network (:mod:`vhl.deploy.sites`)."""

    overlaps: bool
    """Whether work goes on while the host does something else."""

    def train(self, orders: Sequence[Order], server: Server) -> Flight:
        """Local training of some clients from what the server sends."""

    def evaluate(self, server: Server) -> Pending:
        """Predictions of this model on held-out images, counted."""

    def moments(self, server: Server) -> dict[str, Tensor]:
        """Of the model's features of all clients' training images; see :func:`vhl.rounds.looking.moments`."""

    def close(self) -> None:
        """Take back what is not done yet."""
