"""What every partition promises that deals pooled images out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vhl.data.partitions._dealt import Dealt, evenly
from vhl.data.partitions.classes import Classes
from vhl.data.partitions.iid import IID
from vhl.data.partitions.lda import LDA
from vhl.data.partitions.quantity import Quantity
from vhl.data.partitions.subset import Subset

DEALT: list[type[Dealt]] = [LDA, Quantity, Classes, Subset, IID]


@st.composite
def requests(draw):
    """Labels in any order, unequal classes, and a number of clients that every partition can serve."""
    sizes = draw(st.lists(st.integers(15, 40), min_size=2, max_size=5))
    labels = draw(st.permutations(np.repeat(np.arange(len(sizes)), sizes).tolist()))
    clients = draw(st.integers(len(sizes), 2 * len(sizes)))
    return labels, len(sizes), clients, draw(st.integers(0, 2**32 - 1))


def _partition(cls: type[Dealt], clients: int) -> Dealt:
    # Enough images for one each at α = 1, whatever the draw: no request here is refused.
    return cls(clients=clients, **({"alpha": 1.0, "min_size": 1} if issubclass(cls, LDA) else {}))


@pytest.mark.parametrize("cls", DEALT)
@settings(max_examples=40, deadline=None)
@given(request=requests())
def test_every_image_goes_to_exactly_one_client(cls, make_dataset, request) -> None:
    labels, classes, clients, seed = request
    parts = _partition(cls, clients).assign(make_dataset(labels, classes), seed)
    assert len(parts) == clients
    assert np.sort(np.concatenate(parts)).tolist() == list(range(len(labels)))
    for part in parts:
        assert part.dtype == np.int64
        assert len(part) > 0
        assert (np.diff(part) > 0).all()


@pytest.mark.parametrize("cls", DEALT)
def test_seed_alone_decides(cls, make_dataset) -> None:
    dataset = make_dataset(np.tile(np.arange(4), 50), 4)
    first, again, other = (_partition(cls, 6).assign(dataset, seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@given(total=st.integers(0, 1000), shares=st.integers(1, 50))
def test_evenly_differs_by_one_at_most(total, shares) -> None:
    parts = evenly(total, shares)
    assert len(parts) == shares
    assert parts.sum() == total
    assert parts.max() - parts.min() <= 1
