from __future__ import annotations

import numpy as np

from vhl.data.partitions.base import count_matrix, heterogeneity
from vhl.data.partitions.iid import IID


def test_equal_parts(make_dataset) -> None:
    parts = IID(clients=4).assign(make_dataset(np.zeros(10), 1), 0)
    assert [len(part) for part in parts] == [3, 3, 2, 2]


def test_clients_look_like_the_whole_though_labels_are_sorted(make_dataset) -> None:
    labels = np.repeat(np.arange(10), 1000)
    parts = IID(clients=10).assign(make_dataset(labels, 10), 0)
    assert heterogeneity(count_matrix(labels, parts, 10)) < 0.08  # unshuffled it would be 0.9
