from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment, linprog
from scipy.spatial.distance import cdist
from scipy.stats import wasserstein_distance

from vhl.analysis.transport import at_most, class_distance, normalised, split_half_floor, wasserstein
from vhl.errors import VHLError

pytest.importorskip("ot", reason="the extra vhl[analysis] is not installed")


def _by_linear_programme(first: np.ndarray, second: np.ndarray) -> float:
    rows, columns = len(first), len(second)
    sums = np.vstack([np.kron(np.eye(rows), np.ones(columns)), np.kron(np.ones(rows), np.eye(columns))])
    totals = np.concatenate([np.full(rows, 1 / rows), np.full(columns, 1 / columns)])
    return linprog(cdist(first, second).ravel(), A_eq=sums, b_eq=totals).fun


def _points(*shape: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


_counts, _seeds = st.integers(1, 9), st.integers(0, 2**31)


@settings(deadline=None, max_examples=50)
@given(_counts, _counts, st.integers(1, 5), _seeds)
def test_it_is_the_linear_programme(rows, columns, size, seed):
    first, second = _points(rows, size, seed=seed), _points(columns, size, seed=seed + 1)
    expected = _by_linear_programme(first.numpy(), second.numpy())
    assert wasserstein(first, second) == pytest.approx(expected, rel=1e-9)


def test_large_samples_are_matched_best():
    first, second = _points(200, 512, seed=0), _points(200, 512, seed=1) + 0.1
    costs = cdist(first, second)
    assert wasserstein(first, second) == pytest.approx(costs[linear_sum_assignment(costs)].mean(), rel=1e-12)


@settings(deadline=None, max_examples=50)
@given(_counts, _counts, _seeds)
def test_on_a_line_sorted_samples_are_matched(rows, columns, seed):
    first, second = _points(rows, 1, seed=seed), _points(columns, 1, seed=seed + 1)
    expected = wasserstein_distance(first[:, 0], second[:, 0])
    assert wasserstein(first, second) == pytest.approx(expected, rel=1e-9)
    if rows == columns:
        assert expected == pytest.approx((first.sort(0).values - second.sort(0).values).abs().mean().item())


@settings(deadline=None, max_examples=50)
@given(_counts, _counts, _counts, _seeds)
def test_it_is_a_metric(rows, columns, more, seed):
    first, second, third = (_points(n, 3, seed=seed + n) for n in (rows, columns, more))
    there = wasserstein(first, second)
    assert there == pytest.approx(wasserstein(second, first))
    assert wasserstein(first, third) <= there + wasserstein(second, third) + 1e-9
    assert wasserstein(first, first.flip(0)) == 0
    assert wasserstein(first, first + torch.tensor([3.0, 0.0, 4.0])) == pytest.approx(5)


def test_single_precision_is_measured_in_double():
    first, second = _points(5, 3, seed=0).float() + 1e4, _points(4, 3, seed=1).float() + 1e4
    expected = _by_linear_programme(first.double().numpy(), second.double().numpy())
    assert wasserstein(first, second) == pytest.approx(expected, rel=1e-9)


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    with pytest.raises(VHLError, match=r"pip install 'vhl\[analysis\]'"):
        wasserstein(torch.zeros(1, 1), torch.zeros(1, 1))


# --- over classes --------------------------------------------------------------------------------------


def _on_a_line(*values: float, labels: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(values).double()[:, None], torch.tensor(labels)


def test_classes_are_compared_alone_and_weighed_by_the_frequencies():
    natural = _on_a_line(0, 10, 2, labels=[0, 1, 0])
    virtual = _on_a_line(11, 13, 5, 99, labels=[1, 1, 0, 2])
    frequencies = torch.tensor([0.75, 0.25, 0.0])
    assert class_distance(natural, virtual, frequencies) == pytest.approx(0.75 * 4 + 0.25 * 2)


def test_a_class_that_occurs_needs_samples_on_both_sides():
    both, one = _on_a_line(0, 1, 2, 3, labels=[0, 0, 1, 1]), _on_a_line(0, 1, labels=[0, 0])
    frequencies = torch.tensor([0.5, 0.5])
    for sides in ((both, one), (one, both)):
        for measure in (class_distance, split_half_floor):
            with pytest.raises(VHLError, match="Class 1 has 0 samples"):
                measure(*sides, frequencies)
    assert class_distance(both, one, torch.tensor([1.0, 0.0])) == 0
    with pytest.raises(VHLError, match="Class 0 has 1 samples and needs 2"):
        split_half_floor(both, _on_a_line(0, labels=[0]), torch.tensor([1.0, 0.0]))


def test_the_floor_is_the_mean_distance_of_halves():
    natural = _on_a_line(0, 7, 3, 1, labels=[0, 1, 0, 1])
    virtual = _on_a_line(0, 5, 1, 1, labels=[0, 0, 1, 1])
    expected = 0.25 * (3 + 5) / 2 + 0.75 * (6 + 0) / 2
    assert split_half_floor(natural, virtual, torch.tensor([0.25, 0.75])) == pytest.approx(expected)


def test_an_odd_sample_has_uneven_halves():
    samples = _on_a_line(0, 0, 6, labels=[0, 0, 0])
    floors = {split_half_floor(samples, samples, torch.ones(1), seed) for seed in range(20)}
    assert {round(floor, 9) for floor in floors} == {3, 4.5, 6}  # each side 3 or 6


def test_halves_are_random_and_seeded():
    ordered = torch.cat([torch.zeros(50, 1), torch.ones(50, 1)]), torch.zeros(100).long()
    floors = [split_half_floor(ordered, ordered, torch.ones(1), seed) for seed in (0, 0, 1, 2, 3)]
    assert floors[0] == floors[1]
    assert len(set(floors)) > 1
    assert max(floors) < 0.4  # the first half and the second are 1 apart


def test_the_floor_is_what_equal_distributions_have():
    first, second = (_points(200, 64, seed=seed) for seed in (0, 1))
    labels, frequencies = torch.zeros(200).long(), torch.ones(1)
    distance = class_distance((first, labels), (second, labels), frequencies)
    floor = split_half_floor((first, labels), (second, labels), frequencies)
    assert 8 < distance < floor < 1.1 * distance
    assert class_distance((first, labels), (second + 3, labels), frequencies) > 2 * floor


def test_normalised_features_have_length_one_and_forget_scale():
    samples = _points(20, 6, seed=0), torch.arange(20)
    features, labels = normalised(samples)
    np.testing.assert_allclose(features.norm(dim=1), 1)
    np.testing.assert_allclose(normalised((7 * samples[0], labels))[0], features)
    assert labels is samples[1]
    assert normalised((torch.zeros(1, 3), labels[:1]))[0].tolist() == [[0, 0, 0]]


def test_at_most_so_many_of_a_class():
    labels = torch.tensor([0] * 30 + [2] * 4 + [1] * 20).roll(17)
    features = torch.arange(54)[:, None] * 1.0
    drawn = [at_most((features, labels), 8, np.random.default_rng(seed)) for seed in range(40)]
    for chosen, their_labels in drawn:
        assert their_labels.bincount().tolist() == [8, 8, 4]
        positions = chosen[:, 0].long()
        assert (positions.diff() > 0).all()  # none twice, in order
        assert (labels[positions] == their_labels).all()
    assert torch.cat([chosen for chosen, _ in drawn]).unique().numel() == 54  # each is drawn at times
    again, _ = at_most((features, labels), 8, np.random.default_rng(0))
    assert (again == drawn[0][0]).all() and (again != drawn[1][0]).any()
