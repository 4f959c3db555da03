from __future__ import annotations

import numpy as np
import pytest

from vhl.data.partitions.base import count_matrix, heterogeneity
from vhl.data.partitions.quantity import Quantity


def test_cuts_one_shuffled_pile_at_the_cumulative_shares(make_dataset) -> None:
    random, order = np.random.RandomState(5), np.arange(1000)
    random.shuffle(order)
    cuts = (np.cumsum(random.dirichlet([2.0] * 4)) * 1000).astype(int)[:-1]
    parts = Quantity(clients=4, alpha=2.0).assign(make_dataset(np.tile(np.arange(2), 500), 2), 5)
    assert [part.tolist() for part in parts] == [sorted(piece) for piece in np.split(order, cuts)]


@pytest.mark.parametrize("alpha", [2.0, 8.0])
def test_sizes_spread_as_the_dirichlet_distribution(make_dataset, alpha) -> None:
    """E Σ p² = (α + 1) / (Kα + 1) for p ~ Dir(α·1_K)."""
    dataset = make_dataset(np.zeros(2000), 1)
    partition = Quantity(clients=5, alpha=alpha)
    shares = np.array([[len(p) / 2000 for p in partition.assign(dataset, seed)] for seed in range(400)])
    assert (shares**2).sum(1).mean() == pytest.approx((alpha + 1) / (5 * alpha + 1), abs=0.015)


def test_clients_have_the_labels_of_the_whole(make_dataset) -> None:
    labels = np.repeat([0, 1, 2], [12_000, 6_000, 2_000])
    parts = Quantity(clients=5, alpha=0.5, min_size=300).assign(make_dataset(labels, 3), 0)
    counts = count_matrix(labels, parts, 3)
    assert counts.sum(1).max() > 1.5 * counts.sum(1).min()
    assert heterogeneity(counts) < 0.05


def test_min_size_is_kept(make_dataset) -> None:
    dataset = make_dataset(np.zeros(100), 1)
    sizes = [len(p) for s in range(20) for p in Quantity(clients=5, alpha=0.3, min_size=8).assign(dataset, s)]
    assert min(sizes) >= 8
