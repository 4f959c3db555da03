from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from vhl.training.plan import client_rng, draw_plan, steps_per_epoch
from vhl.training.stream import Stream

from vhl.data.images import ImageSet, ImageStream
from vhl.objectives.plain import Plain
from vhl.objectives.vfa import VFA
from vhl.objectives.vhl import VHL


def stream(count, **settings):
    images = ImageSet(np.zeros((count, 4, 4, 1), np.uint8), np.arange(count) % 3)
    return Stream(images, ImageStream(**settings), (np.zeros(1), np.ones(1)), torch.device("cpu"))


def plan(samples, batch=4, epochs=1, virtual=None, objective=None, key=(0, 0, 0), **settings):
    return draw_plan(
        client_rng(*key),
        np.asarray(samples),
        batch=batch,
        epochs=epochs,
        natural=stream(200, **{"crop": 1, "flip": True, **settings}),
        virtual=virtual,
        objective=objective or Plain(),
        classes=3,
        features={"last": 5},
    )


@given(count=st.integers(1, 40), batch=st.integers(1, 12), epochs=st.integers(1, 3), seed=st.integers(0, 99))
def test_each_epoch_is_each_sample_once_and_fillers_from_its_start(count, batch, epochs, seed):
    samples = 150 - 3 * np.arange(count)
    found = plan(samples, batch, epochs, key=(seed, 1, 2))
    steps = -(-count // batch)
    assert steps_per_epoch(count, batch) == steps
    assert found["index"].shape == found["weights"].shape == (epochs * steps, batch)
    for epoch in range(epochs):
        rows = slice(epoch * steps, (epoch + 1) * steps)
        index, weights = found["index"][rows].ravel(), found["weights"][rows].ravel()
        assert sorted(index[:count]) == sorted(samples)
        assert weights.tolist() == [1] * count + [0] * (steps * batch - count)
        assert index[count:].tolist() == [index[n % count] for n in range(steps * batch - count)]


def test_a_client_smaller_than_a_batch_repeats_its_samples():
    found = plan([7, 9, 11], batch=8)
    (index,), (weights,) = found["index"], found["weights"]
    assert sorted(index[:3]) == [7, 9, 11]
    assert index.tolist() == [*index[:3], *index[:3], *index[:2]]
    assert weights.tolist() == [1, 1, 1, 0, 0, 0, 0, 0]


def test_epochs_are_shuffled_anew():
    first, second = plan(np.arange(40), batch=40, epochs=2)["index"]
    assert first.tolist() != second.tolist()
    assert first.tolist() != sorted(first)


def test_seed_round_and_client_decide_everything():
    def all_draws(*key):
        found = plan(np.arange(30), epochs=2, virtual=stream(20, crop=1), objective=VHL(), key=key)
        return {name: array.tolist() for name, array in found.items()}

    reference = all_draws(1, 2, 3)
    assert all_draws(1, 2, 3) == reference
    for other in (all_draws(2, 2, 3), all_draws(1, 3, 3), all_draws(1, 2, 4)):
        assert all(other[name] != values for name, values in reference.items() if name != "weights")


@pytest.mark.parametrize("objective", [VHL(virtual_batch=7), VFA()])
def test_natural_choices_are_the_same_without_virtual_data(objective):
    """Paired runs see the same natural batches, crops and flips."""
    alone = plan(np.arange(30), epochs=2)
    paired = plan(np.arange(30), epochs=2, virtual=stream(20), objective=objective)
    assert set(alone) == {"index", "weights", "natural.row", "natural.column", "natural.flip"}
    assert set(paired) > set(alone)
    assert all(np.array_equal(alone[name], paired[name]) for name in alone)


def test_virtual_indices_are_reshuffled_passes():
    """5 steps of 8 virtual images are 40: four passes over 10 images, each in an order of its own."""
    found = plan(np.arange(20), virtual=stream(10, crop=2), objective=VHL(virtual_batch=8))
    assert found["index"].shape == (5, 4)
    assert found["virtual"].shape == (5, 8)
    assert found["virtual.row"].shape == (5, 8)
    passes = found["virtual"].reshape(4, 10)
    assert all(sorted(one) == list(range(10)) for one in passes)
    assert len({tuple(one) for one in passes}) == 4


def test_a_virtual_set_that_the_steps_do_not_use_up():
    (virtual,) = plan([1, 2], virtual=stream(50), objective=VHL(virtual_batch=6))["virtual"]
    assert len(set(virtual)) == 6 and set(virtual) <= set(range(50)) and virtual.tolist() != sorted(virtual)


def test_no_virtual_rows_where_the_objective_wants_none():
    assert "virtual" not in plan([1, 2], virtual=stream(50), objective=Plain())


def test_an_objective_draws_for_every_step():
    """VFA: ⌊B/C⌋ + 1 = 2 features of length 5 for each of 3 classes."""
    assert plan(np.arange(20), objective=VFA())["draws.noise"].shape == (5, 3, 2, 5)


def test_a_stream_without_augmentation_draws_nothing():
    assert set(plan(np.arange(20), crop=0, flip=False)) == {"index", "weights"}
