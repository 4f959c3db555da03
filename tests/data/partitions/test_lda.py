from __future__ import annotations

import warnings

import numpy as np
import pytest

from vhl.data.partitions.lda import LDA
from vhl.errors import VHLError

# A shuffle draws the same random numbers whatever it shuffles, so class sizes alone decide client sizes:
# 5,000 labels of each class, in any order, stand for CIFAR-10.
CIFAR10_SIZES = [7615, 5142, 7498, 865, 2731, 6130, 6415, 3034, 6091, 4479]


def reference(labels: np.ndarray, classes: int, clients: int, alpha: float, least: int, seed: int):
    """FedML's loop, as published: lists of indices, and how many tries it took."""
    np.random.seed(seed)
    smallest, tries, total = -1, 0, len(labels)
    while smallest < least:
        tries += 1
        batches: list[list[int]] = [[] for _ in range(clients)]
        for k in range(classes):
            indices = np.where(labels == k)[0]
            np.random.shuffle(indices)
            proportions = np.random.dirichlet(np.repeat(alpha, clients))
            proportions = np.array(
                [p * (len(batch) < total / clients) for p, batch in zip(proportions, batches, strict=True)]
            )
            proportions = proportions / proportions.sum()
            cuts = (np.cumsum(proportions) * len(indices)).astype(int)[:-1]
            batches = [
                batch + piece.tolist() for batch, piece in zip(batches, np.split(indices, cuts), strict=True)
            ]
        smallest = min(len(batch) for batch in batches)
    return batches, tries


@pytest.mark.parametrize("arrange", [np.repeat, lambda classes, n: np.tile(classes, n)])
def test_cifar10_split_of_the_paper(make_dataset, arrange) -> None:
    dataset = make_dataset(arrange(np.arange(10), 5000), 10)
    assert [len(part) for part in LDA().assign(dataset, 0)] == CIFAR10_SIZES


@pytest.mark.slow
def test_hundred_clients_at_alpha_005_take_6446_tries(make_dataset) -> None:
    dataset = make_dataset(np.repeat(np.arange(10), 5000), 10)
    with pytest.raises(VHLError, match="None of 6445 draws"):
        LDA(clients=100, alpha=0.05, max_tries=6445).assign(dataset, 0)
    assert len(LDA(clients=100, alpha=0.05, max_tries=6446).assign(dataset, 0)) == 100


@pytest.mark.parametrize("alpha", [0.1, 0.5, 10.0])
@pytest.mark.parametrize("clients", [1, 3, 10])
def test_equals_the_reference_index_for_index(make_dataset, alpha, clients) -> None:
    for seed in range(8):
        labels = np.random.default_rng(seed).choice(5, 400, p=[0.4, 0.3, 0.15, 0.1, 0.05])
        expected, _ = reference(labels, 5, clients, alpha, least=5, seed=seed)
        parts = LDA(alpha=alpha, clients=clients).assign(make_dataset(labels, 5), seed)
        assert [part.tolist() for part in parts] == [sorted(batch) for batch in expected]


def test_tries_continue_one_random_stream_and_are_capped(make_dataset) -> None:
    labels = np.tile(np.arange(5), 40)
    expected, tries = reference(labels, 5, 8, 0.2, least=12, seed=0)
    assert tries > 2  # or this test shows nothing
    options = {"alpha": 0.2, "clients": 8, "min_size": 12}
    parts = LDA(**options, max_tries=tries).assign(make_dataset(labels, 5), 0)
    assert [part.tolist() for part in parts] == [sorted(batch) for batch in expected]
    with pytest.raises(VHLError) as error:
        LDA(**options, max_tries=tries - 1).assign(make_dataset(labels, 5), 0)
    message = str(error.value)
    assert message.startswith(
        f"None of {tries - 1} draws at alpha = 0.2 dealt 200 training images over 8 clients"
    )
    assert "at least 12 each" in message
    for option in ("alpha", "max_tries", "clients", "min_size"):
        assert f"partition.{option}" in message


def test_failure_tells_the_best_smallest_client(make_dataset) -> None:
    labels = np.tile(np.arange(5), 40)
    # min_size 1 and one try at most: the first draw of seed 0 is accepted and shows its smallest client.
    smallest = min(len(b) for b in LDA(clients=4, min_size=1, alpha=0.5).assign(make_dataset(labels, 5), 0))
    with pytest.raises(VHLError, match=rf"\(the best left a client {smallest}\)"):
        LDA(clients=4, min_size=50, alpha=0.5, max_tries=1).assign(make_dataset(labels, 5), 0)


def test_min_size_unset_is_the_number_of_classes(make_dataset) -> None:
    dataset = make_dataset(np.tile(np.arange(10), 12), 10)
    sizes = [[len(p) for p in LDA(clients=6, alpha=0.3).assign(dataset, seed)] for seed in range(20)]
    free = [
        [len(p) for p in LDA(clients=6, alpha=0.3, min_size=1).assign(dataset, seed)] for seed in range(20)
    ]
    assert min(map(min, sizes)) >= 10
    assert min(map(min, free)) < 10


def test_tiny_alpha_fails_its_tries_without_a_warning(make_dataset) -> None:
    """At α = 10⁻³ most shares are exactly 0 and a class may find only full clients: that try is no split."""
    dataset = make_dataset(np.tile(np.arange(4), 25), 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(200):
            parts = LDA(alpha=1e-3, clients=2).assign(dataset, seed)
            assert min(len(part) for part in parts) >= 4
            assert np.sort(np.concatenate(parts)).tolist() == list(range(100))


def test_class_without_images_is_no_obstacle(make_dataset) -> None:
    """The client is full before the empty class comes: nothing is left to share, which is no failure."""
    (part,) = LDA(clients=1).assign(make_dataset([0, 1, 0, 1], 3), 0)
    assert part.tolist() == [0, 1, 2, 3]
