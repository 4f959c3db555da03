"""What a partition is: which training images each client holds."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from vhl.config.component import Component
from vhl.data.images import Dataset


class Partition(Component):
    """Deals the training images out to clients; a new one is one file that overrides :meth:`assign`."""

    room: ClassVar[str] = "partitions"

    def assign(self, dataset: Dataset, seed: int) -> list[np.ndarray]:
        """The indices of each client's training images: one ascending int64 array a client, none empty."""
        raise NotImplementedError


def count_matrix(labels: np.ndarray, parts: list[np.ndarray], classes: int) -> np.ndarray:
    """Samples of each class at each client: (clients × classes)."""
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


def heterogeneity(counts: np.ndarray) -> float:
    """Mean total-variation distance between a client's label distribution and the global one.

    (1/K) Σ_k ½ Σ_c |P_k(c) − P(c)|, where P is the distribution of all clients' samples together: 0 where
    every client looks like the whole, 1 − 1/C where each of C balanced classes has its own client.

    >>> heterogeneity(np.array([[10, 0], [0, 10]]))
    0.5
    """
    shares = counts / counts.sum(1, keepdims=True)
    overall = counts.sum(0) / counts.sum()
    return float(np.abs(shares - overall).sum(1).mean() / 2)
