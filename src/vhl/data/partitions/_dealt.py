"""What partitions share that deal pooled images out to a chosen number of clients."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from vhl.data.images import Dataset
from vhl.data.partitions.base import Partition, grouped
from vhl.errors import VHLError


class Dealt(Partition):
    """Deals pooled images out to ``clients`` clients; one of these overrides :meth:`deal`."""

    clients: int = Field(10, ge=1, description="number of clients K")

    def assign(self, dataset: Dataset, seed: int) -> list[np.ndarray]:
        images = len(dataset.train)
        if self.clients > images:
            raise VHLError(
                f"{images} training images cannot be dealt out to {self.clients} clients; "
                f"set partition.clients to {images} at most."
            )
        return [np.sort(part) for part in self.deal(dataset, seed)]

    def deal(self, dataset: Dataset, seed: int) -> list[np.ndarray]:
        """The indices of each client's training images, in any order."""
        raise NotImplementedError


def by_class(dataset: Dataset) -> list[np.ndarray]:
    """The indices of each class's training images, in order."""
    return grouped(dataset.train.labels, len(dataset.classes))


def evenly(total: int, shares: int) -> np.ndarray:
    """``total`` in ``shares`` whole numbers that differ by one at most, the larger first.

    >>> evenly(50, 9)
    array([6, 6, 6, 6, 6, 5, 5, 5, 5])
    """
    return total // shares + (np.arange(shares) < total % shares)


def deal_counts(
    members: list[np.ndarray], counts: np.ndarray, random: np.random.Generator
) -> list[np.ndarray]:
    """Give client k ``counts[k, c]`` random images of each class c, no image twice."""
    hands: list[list[np.ndarray]] = [[] for _ in counts]
    for own, column in zip(members, counts.T, strict=True):
        pieces = np.split(random.permutation(own), np.cumsum(column))
        for hand, piece in zip(hands, pieces, strict=False):  # the last piece is what nobody asked for
            hand.append(piece)
    return [np.concatenate(hand) for hand in hands]
