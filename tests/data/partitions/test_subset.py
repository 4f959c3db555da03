from __future__ import annotations

import numpy as np
import pytest

from vhl.data.partitions.base import count_matrix, heterogeneity
from vhl.data.partitions.subset import Subset

CIFAR10_LABELS = np.tile(np.arange(10), 5000)


def test_cifar10_counts_of_the_paper(make_dataset) -> None:
    """4,950 of one class; 50 over 9 others are 5 × 6 and 4 × 5."""
    counts = count_matrix(CIFAR10_LABELS, Subset().assign(make_dataset(CIFAR10_LABELS, 10), 0), 10)
    assert (counts.diagonal() == 4950).all()
    for vector in (*counts, *counts.T):  # clients and classes alike
        assert sorted(vector) == [5] * 4 + [6] * 5 + [4950]
    assert heterogeneity(counts) == pytest.approx(0.99 - 0.1)


def test_clients_share_a_dominant_class(make_dataset) -> None:
    """2 classes of 100, 4 clients, 0.9: clients 0 and 2 have 45 of class 0, 1 and 3 share its other 10."""
    labels = np.tile([0, 1], 100)
    parts = Subset(clients=4, dominant=0.9).assign(make_dataset(labels, 2), 0)
    assert count_matrix(labels, parts, 2).tolist() == [[45, 5], [5, 45], [45, 5], [5, 45]]


def test_dominant_1_leaves_one_class_a_client(make_dataset) -> None:
    labels = np.repeat([0, 1, 2], [4, 5, 6])
    parts = Subset(clients=3, dominant=1).assign(make_dataset(labels, 3), 0)
    assert count_matrix(labels, parts, 3).tolist() == [[4, 0, 0], [0, 5, 0], [0, 0, 6]]
