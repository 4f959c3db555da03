"""What is set up once: outputs, virtual data, statistics, constants, what a step costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from vhl.data.partitions.base import Partition
from vhl.errors import VHLError
from vhl.rounds.setup import Setup


@pytest.fixture
def setup(digit_simulation: Any) -> Callable[..., Setup]:
    return lambda **settings: digit_simulation(**settings).setup


def test_compute_is_relative_to_plain_training(setup: Any) -> None:
    """A CNN of width 4 on 8×8 digits; MOON passes natural rows through two more networks, forward alone."""
    body, training = 64 * 9 * 4 + 16 * 9 * 32 + 4 * 9 * 128, {"batch_size": 10}
    plain = setup(training=training)
    assert plain.compute == 1.0 and (plain.blueprint.outputs, plain.virtual) == (4, None)
    vhl = setup(objective="vhl", training=training)
    assert vhl.compute == pytest.approx(16 * (body + 16 * 8) / (10 * (body + 16 * 4)))
    light = setup(objective={"name": "vhl-light", "virtual_batch": 8}, training=training)
    assert light.compute == pytest.approx(12 * (body + 16 * 8) / (10 * (body + 16 * 4)))
    assert setup(algorithm="moon", training=training).compute == pytest.approx(1 + 2 / 3)


@pytest.mark.parametrize(
    ("objective", "outputs", "virtual"),
    [("plain", 4, False), ("vfa", 4, False), ("vftl", 4, True), ("naive", 7, True)],
)
def test_virtual_data_only_where_the_objective_wants_them(
    setup: Any, objective: str, outputs: int, virtual: bool
) -> None:
    found = setup(objective=objective, virtual={"name": "noise", "per_class": 5, "classes": 3})
    assert found.blueprint.outputs == outputs and (found.virtual is not None) == virtual
    if virtual:
        assert np.bincount(found.virtual.images.labels).tolist() == [5, 5, 5]
        assert found.virtual.images.shape == (8, 8, 1)


def test_test_images_are_normalised_like_training_images(setup: Any, small_digits: Any) -> None:
    """And never augmented."""
    data = small_digits(crop=1, flip=True)
    found, dataset = setup(objective="vhl", data=data), data.load(None, 0)
    train = dataset.train.images / 255
    batch = found.test.batch(torch.arange(40), {})
    expected = (dataset.test.images / 255 - train.mean()) / train.std()
    np.testing.assert_allclose(batch.permute(0, 2, 3, 1), expected, atol=1e-5)
    virtual = found.virtual.plain.batch(torch.arange(20), {})
    np.testing.assert_allclose(
        virtual.permute(0, 2, 3, 1), (found.virtual.images.images[:20] / 255 - 0.5) / 0.25, atol=1e-5
    )


def test_shared_constants_follow_the_data_seed(setup: Any) -> None:
    means = [
        setup(objective="vfa", seeds=seeds).shared["means"]
        for seeds in ({}, {"model": 1, "sampling": 1, "batches": 1}, {"data": 1})
    ]
    assert tuple(means[0].shape) == (4, 16)
    assert means[0].equal(means[1]) and not means[0].equal(means[2])


class _Parts(Partition):
    """Classes of each client."""

    classes: tuple[tuple[int, ...], ...]

    def assign(self, dataset: Any, seed: int) -> list[np.ndarray]:
        return [np.flatnonzero(np.isin(dataset.train.labels, own)) for own in self.classes]


def test_clients_hold_what_the_partition_says(setup: Any, small_digits: Any) -> None:
    found = setup(partition=_Parts(classes=((0,), (2, 3))))
    totals = np.bincount(small_digits().load(None, 0).train.labels).tolist()
    assert found.data.counts.tolist() == [[totals[0], 0, 0, 0], [0, 0, totals[2], totals[3]]]
    assert found.clients == 2 and found.sizes == (totals[0], totals[2] + totals[3])


def test_a_client_without_images_is_refused(setup: Any) -> None:
    with pytest.raises(VHLError, match="without images"):
        setup(partition=_Parts(classes=((0, 1), ())))
