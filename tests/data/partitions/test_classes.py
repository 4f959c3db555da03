from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vhl.data.partitions.base import count_matrix, heterogeneity
from vhl.data.partitions.classes import Classes

CIFAR10_LABELS = np.tile(np.arange(10), 5000)


def test_all_images_of_a_class_are_split_evenly_among_its_holders(make_dataset) -> None:
    parts = Classes().assign(make_dataset(CIFAR10_LABELS, 10), 0)
    counts = count_matrix(CIFAR10_LABELS, parts, 10)
    assert ((counts > 0).sum(1) == 2).all()
    assert (np.diag(counts) > 0).all()  # client i holds class i
    for column in counts.T:
        held = column[column > 0]
        assert held.sum() == 5000
        assert held.max() - held.min() <= 1


def test_one_class_each_by_hand(make_dataset) -> None:
    """Clients 0, 2 and 4 share the 7 images of class 0, clients 1 and 3 the 4 images of class 1."""
    labels = np.repeat([0, 1], [7, 4])
    counts = count_matrix(labels, Classes(clients=5, per_client=1).assign(make_dataset(labels, 2), 0), 2)
    assert counts.tolist() == [[3, 0], [0, 2], [2, 0], [0, 2], [2, 0]]


def test_one_class_each_is_as_heterogeneous_as_can_be(make_dataset) -> None:
    parts = Classes(per_client=1).assign(make_dataset(CIFAR10_LABELS, 10), 0)
    assert heterogeneity(count_matrix(CIFAR10_LABELS, parts, 10)) == pytest.approx(0.9)


def test_other_class_is_any_other_by_seed(make_dataset) -> None:
    labels = np.tile(np.arange(4), 40)
    dataset = make_dataset(labels, 4)
    others = {
        int(label)
        for seed in range(40)
        for label in np.unique(labels[Classes(clients=4).assign(dataset, seed)[0]])
    }
    assert others == {0, 1, 2, 3}


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_fewer_clients_than_classes_still_use_every_image(make_dataset, data) -> None:
    classes = data.draw(st.integers(2, 9))
    clients = data.draw(st.integers(1, classes - 1))
    per_client = data.draw(st.integers(-(-classes // clients), classes))
    labels = np.tile(np.arange(classes), 20)
    seed = data.draw(st.integers(0, 1000))
    parts = Classes(clients=clients, per_client=per_client).assign(make_dataset(labels, classes), seed)
    counts = count_matrix(labels, parts, classes)
    assert np.sort(np.concatenate(parts)).tolist() == list(range(len(labels)))
    assert ((counts > 0).sum(1) == per_client).all()
    assert (counts.diagonal() > 0).all()


def test_500_samples_a_client_are_250_of_each_of_two_classes(make_dataset) -> None:
    parts = Classes(samples=500).assign(make_dataset(CIFAR10_LABELS, 10), 0)
    counts = count_matrix(CIFAR10_LABELS, parts, 10)
    assert all(sorted(row) == [0] * 8 + [250, 250] for row in counts.tolist())
    assert (counts.diagonal() == 250).all()
    assert len(np.unique(np.concatenate(parts))) == 5000  # nobody shares an image


def test_samples_that_do_not_divide_differ_by_one(make_dataset) -> None:
    labels = np.tile(np.arange(6), 50)
    parts = Classes(clients=6, per_client=3, samples=8).assign(make_dataset(labels, 6), 0)
    counts = count_matrix(labels, parts, 6)
    assert all(sorted(row) == [0, 0, 0, 2, 3, 3] for row in counts.tolist())


def test_samples_may_leave_classes_out(make_dataset) -> None:
    labels = np.tile(np.arange(5), 10)
    counts = count_matrix(labels, Classes(clients=1, samples=6).assign(make_dataset(labels, 5), 0), 5)
    assert counts[0, 0] == 3
    assert sorted(counts[0]) == [0, 0, 0, 3, 3]
