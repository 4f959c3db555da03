"""Requests that cannot be met: what is wrong, and what to change."""

from __future__ import annotations

import numpy as np
import pytest

from vhl.config.registry import build
from vhl.data.partitions.base import Partition

THREE, FIVE, TEN = (np.tile(np.arange(classes), 20) for classes in (3, 5, 10))


@pytest.mark.parametrize(
    ("partition", "labels", "texts"),
    [
        ({"name": "classes", "clients": 3, "per_client": 4}, THREE, ["cannot hold 4", "per_client to 3 at"]),
        ({"name": "classes", "clients": 1}, THREE, ["1 clients with 2", "leave 1 of 3", "partition.clients"]),
        ({"name": "classes", "clients": 3, "samples": 1}, THREE, ["1 images a client", "samples to 2 at"]),
        # 3 clients hold all 3 classes, 7 images of each: 21 of 20.
        (
            {"name": "classes", "clients": 3, "per_client": 3, "samples": 21},
            THREE,
            ["'class 0' has 20 training images", "3 clients", "need 21", "or partition.samples."],
        ),
        (
            {"name": "classes", "clients": 25, "per_client": 3},
            THREE,
            ["'class 0' has 20", "25 clients", "need 25; lower partition.clients."],
        ),
        ({"name": "subset", "clients": 3}, FIVE, ["3 clients leave 2 of 5", "partition.clients to 5 at"]),
        ({"name": "subset", "clients": 2}, np.zeros(20), ["no others; use partition = iid"]),
        (
            {"name": "subset", "clients": 8, "dominant": 0.7},
            np.repeat([0, 1], [30, 3]),
            ["2 of the 3", "'class 1'", "4 clients it dominates; lower partition.clients"],
        ),
        (
            {"name": "lda", "clients": 21, "max_tries": 10**9},
            TEN,
            ["200", "21", "at least 10", "size to 9 at"],
        ),
        (
            {"name": "lda", "clients": 4, "alpha": 1e-300, "max_tries": 50},
            TEN,
            ["None of 50 draws at alpha = 1e-300", "raise partition.alpha"],  # every share underflows to NaN
        ),
        (
            {"name": "quantity", "clients": 5, "min_size": 21},
            np.zeros(100),
            ["100 training images over 5 clients with at least 21 each exists"],
        ),
        (
            {"name": "quantity", "clients": 5, "alpha": 0.01, "min_size": 20, "max_tries": 10},
            np.zeros(100),
            ["None of 10 draws at alpha = 0.01", "raise partition.alpha"],
        ),
        ({"name": "given"}, THREE, ["PATH/SITE/CLASS/image, an npz with an array `sites`"]),
        *(
            ({"name": name, "clients": 61}, THREE, ["60 training images", "partition.clients to 60 at most"])
            for name in ("lda", "quantity", "classes", "subset", "iid")
        ),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("error")
def test_requests_that_cannot_be_met(partition, labels, texts, make_dataset, complains):
    dataset = make_dataset(labels, int(np.max(labels)) + 1)
    with complains(*texts):
        build(Partition, "partition", partition).assign(dataset, 0)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_beyond_the_legacy_generator(seed, make_dataset, complains):
    with complains(f"Seed {seed}", "from 0 to 4294967295"):
        build(Partition, "partition", {"name": "lda", "clients": 2}).assign(make_dataset(THREE, 3), seed)


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        *(({"name": "lda", "alpha": value}, ["partition.alpha = "]) for value in (0, -1, float("nan"))),
        ({"name": "lda", "alpha": float("inf")}, ["partition.alpha = ", "finite number"]),
        ({"name": "subset", "dominant": 0}, ["partition.dominant = "]),
        ({"name": "subset", "dominant": 1.01}, ["partition.dominant = "]),
        ({"name": "centralized", "clients": 5}, ["centralized has no option 'clients'"]),
        ({"name": "given", "clients": 5}, ["given has no option 'clients'"]),
    ],
    ids=str,
)
def test_options_that_mean_nothing(options, texts, complains):
    with complains(*texts):
        build(Partition, "partition", options)
