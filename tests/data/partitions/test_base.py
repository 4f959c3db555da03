from __future__ import annotations

import numpy as np
import pytest

from vhl.config.listing import available
from vhl.config.registry import build
from vhl.data.partitions.base import Partition, count_matrix, heterogeneity


def test_count_matrix_counts_each_client_and_class() -> None:
    labels = np.array([0, 2, 2, 0, 1, 2])
    parts = [np.array([0, 1, 2]), np.array([3, 5])]
    assert count_matrix(labels, parts, classes=4).tolist() == [[1, 0, 2, 0], [1, 0, 1, 0]]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([[5, 5], [1, 1]], 0.0),  # both clients look like the whole
        ([[3, 1], [1, 3]], 0.25),  # ½(|¾ − ½| + |¼ − ½|) at each
        ([[2, 0, 0], [0, 1, 1]], 0.5),
        ([[9, 1], [0, 2]], 0.45),  # whole (¾, ¼): 0.15 and 0.75, each client counting the same
        (np.diag([7, 7, 7, 7]), 0.75),  # 1 − 1/C
    ],
)
def test_heterogeneity_by_hand(counts, expected) -> None:
    assert heterogeneity(np.array(counts)) == pytest.approx(expected)


def test_all_partitions_are_listed() -> None:
    names = {"lda", "classes", "subset", "iid", "quantity", "given", "centralized"}
    assert names <= set(available("partitions"))


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("lda:0.3", "alpha", 0.3),
        ("quantity:2", "alpha", 2.0),
        ("classes:3", "per_client", 3),
        ("subset:0.9", "dominant", 0.9),
        ("iid:7", "clients", 7),
    ],
)
def test_value_after_the_colon_sets_the_main_option(text, field, value) -> None:
    assert getattr(build(Partition, "partition", text), field) == value
