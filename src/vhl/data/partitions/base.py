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


def grouped(groups: np.ndarray, count: int) -> list[np.ndarray]:
    """The indices of each group, ascending, where ``groups`` says which of ``count`` groups each one is in.

    >>> grouped(np.array([2, 0, 2]), 3)
    [array([1]), array([], dtype=int64), array([0, 2])]
    """
    return np.split(np.argsort(groups, kind="stable"), np.cumsum(np.bincount(groups, minlength=count))[:-1])


def count_matrix(labels: np.ndarray, parts: list[np.ndarray], classes: int) -> np.ndarray:
    """Samples of each class at each client: (clients × classes)."""
    owners = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    cells = owners * classes + labels[np.concatenate(parts)]
    return np.bincount(cells, minlength=len(parts) * classes).reshape(len(parts), classes)


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
