from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vhl.analysis.margin import Samples, margins
from vhl.analysis.theory import Terms, measure
from vhl.analysis.transport import wasserstein
from vhl.errors import VHLError

pytest.importorskip("ot", reason="the extra vhl[analysis] is not installed")


def _samples(rng: np.random.Generator, places: np.ndarray, spread: float, least: int, extra: int) -> Samples:
    """Each class around a place of its own: so many samples of every class, and more of random ones."""
    labels = np.concatenate([np.arange(len(places)).repeat(least), rng.integers(0, len(places), extra)])
    features = places[labels] + spread * rng.standard_normal((len(labels), places.shape[1]))
    return torch.from_numpy(features), torch.from_numpy(labels)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    classes=st.integers(2, 4),
    merged=st.booleans(),
    size=st.integers(1, 5),
    whole=st.booleans(),
    spread=st.sampled_from([0.0, 0.01, 1.0]),
    limit=st.integers(2, 6),
)
def test_the_lemma_and_the_bound_hold_for_samples(seed, classes, merged, size, whole, spread, limit):
    rng = np.random.default_rng(seed)
    outputs = classes * (1 + merged)
    weight, bias = rng.standard_normal((outputs, size)), rng.standard_normal(outputs)
    if whole:  # with parallel normals and equal rows
        weight, bias = weight.round(), bias.round()
    places = 2 * rng.standard_normal((classes, size))
    sets = [_samples(rng, places, spread, 2, extra) for extra in (20, 9, 5)]
    head = torch.from_numpy(weight), torch.from_numpy(bias)
    assume(all(margins(*samples, *head, classes).isfinite().all() for samples in sets))
    terms = measure(*sets, head, classes, seed, limit)
    rounding = 1e-9 * (1 + terms.margin_natural)
    assert terms.lemma_gap <= terms.distance + rounding
    assert terms.lower_bound <= terms.margin_natural + rounding
    assert terms.merged_accuracy >= terms.accuracy


def test_a_shift_along_the_normal_reaches_the_lemmas_bound():
    weight, bias = torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.tensor([0.0, 0.0])
    rng = np.random.default_rng(0)
    natural = torch.tensor([[6.0, 8.0]]) + torch.from_numpy(rng.standard_normal((7, 2)))
    virtual = natural + torch.tensor([1.2, 1.6])  # 2 farther from the border
    ones = torch.ones(7).long()
    terms = measure((natural, ones), (virtual, ones), (virtual, ones), (weight, bias), 2)
    assert terms.distance == pytest.approx(2)
    assert terms.lemma_gap == pytest.approx(2)
    assert terms.margin_natural == pytest.approx((natural @ torch.tensor([0.6, 0.8]).double()).mean().item())
    assert terms.lower_bound == pytest.approx(terms.margin_natural)
    assert not terms.vacuous


_HEAD = torch.tensor([[-1.0], [1.0], [-2.0], [2.0]]), torch.tensor([0.0, 0.0, -3.0, -3.0])
"""Class 0 left of 0, class 1 right of it; the virtual outputs are the largest beyond -3 and 3."""


def _line(places: dict[int, list[float]]) -> Samples:
    labels = [label for label, values in places.items() for _ in values]
    values = [value for values in places.values() for value in values]
    return torch.tensor(values)[:, None], torch.tensor(labels)


def test_all_terms_by_hand():
    natural = _line({0: [-1, -5], 1: [2, 2, -1, 4, 2, 2]})  # one is wrong, two are right as virtual ones
    virtual = _line({0: [-1, -2, -3], 1: [9, 9]})
    virtual_train = _line({0: [-8, -8, -8], 1: [10, 12]})
    terms = measure(natural, virtual, virtual_train, _HEAD, 2)
    assert terms.accuracy == pytest.approx(5 / 8)
    assert terms.merged_accuracy == pytest.approx(7 / 8)
    assert terms.margin_natural == pytest.approx(0.25 * 3 + 0.75 * 12 / 6)
    assert terms.margin_virtual == pytest.approx(0.25 * 2 + 0.75 * 9)
    assert terms.margin_virtual_train == pytest.approx(0.25 * 8 + 0.75 * 11)
    zero = (1 / 3 * 0 + 1 / 6 * 1) + (1 / 6 * 3 + 1 / 3 * 2)  # -1 to -1 and -2, -5 to -2 and -3
    assert terms.distance == pytest.approx(0.25 * zero + 0.75 * (7 * 4 + 10 + 5) / 6)
    assert terms.normalised_distance == pytest.approx(0.75 * 2 / 6)  # of the wrong one alone
    assert terms.lemma_gap == pytest.approx(7.25 - 2.25)
    assert terms.lower_bound == pytest.approx(10.25 - 3 - terms.distance)
    assert terms.lower_bound > 0 and not terms.vacuous


def test_the_floors_are_those_of_halves():
    pairs = _line({0: [-1, -5], 1: [2, -2]}), _line({0: [-1, -4], 1: [1, 9]})
    terms = measure(*pairs, pairs[1], _HEAD, 2)
    assert terms.distance_floor == pytest.approx(0.5 * (4 + 3) / 2 + 0.5 * (4 + 8) / 2)
    assert terms.normalised_floor == pytest.approx(0.5 * 0 + 0.5 * (2 + 0) / 2)


def test_the_frequencies_are_those_of_all_natural_samples():
    natural = _line({0: [-1.0] * 30, 1: [2.0] * 10})
    virtual = _line({0: [-3.0] * 4, 1: [3.0] * 40})  # its own frequencies do not count
    terms = measure(natural, virtual, virtual, _HEAD, 2, limit=5)
    assert terms.margin_natural == pytest.approx(0.75 * 1 + 0.25 * 2)
    assert terms.margin_virtual == terms.margin_virtual_train == pytest.approx(3)
    assert terms.distance == pytest.approx(0.75 * 2 + 0.25 * 1)
    assert terms.accuracy == 1


def test_every_term_is_of_the_same_few_samples():
    rng = np.random.default_rng(0)
    natural, virtual = (_samples(rng, rng.standard_normal((2, 3)), 1, 40, 0) for _ in range(2))
    head = torch.from_numpy(rng.standard_normal((4, 3))), torch.from_numpy(rng.standard_normal(4))
    terms = [measure(natural, virtual, virtual, head, 2, seed, limit=4) for seed in (0, 0, 1)]
    assert terms[0] == terms[1]
    assert terms[0].margin_natural != terms[2].margin_natural
    assert terms[0].distance != terms[2].distance
    everything = measure(natural, virtual, virtual, head, 2)
    means = [margins(*side, *head, 2).mean().item() for side in (natural, virtual)]
    assert [everything.margin_natural, everything.margin_virtual] == pytest.approx(means)
    of_class = [[features[labels == label] for features, labels in (natural, virtual)] for label in (0, 1)]
    expected = sum(wasserstein(*sides) for sides in of_class) / 2
    assert everything.distance == pytest.approx(expected)


def test_a_class_that_no_natural_sample_has_does_not_count():
    natural, virtual = _line({0: [-1, -2]}), _line({0: [-2, -3], 1: [50]})
    terms = measure(natural, virtual, virtual, _HEAD, 2)
    assert (terms.margin_natural, terms.margin_virtual, terms.distance) == pytest.approx((1.5, 2.5, 1))


@pytest.mark.parametrize("bound, vacuous", [(2.0, False), (3.0, True), (4.0, True)])
def test_a_bound_of_zero_or_less_says_nothing(bound, vacuous):
    zeros = dict.fromkeys((field.name for field in dataclasses.fields(Terms)), 0.0)
    terms = Terms(**(zeros | {"margin_virtual": 4.0, "margin_virtual_train": 5.0, "distance": bound + 1}))
    assert terms.lower_bound == 3 - bound
    assert terms.vacuous is vacuous


def test_what_cannot_be_measured_is_refused():
    good = _line({0: [-1, -2], 1: [1, 2]})
    for changes, message in [
        ({"classes": 3}, "4 outputs has no margin for 3 classes"),
        ({"head": (torch.zeros(4, 2), torch.zeros(4))}, "do not fit"),
        ({"natural": (good[0], good[1] - 1)}, "Labels must be 0 to 1"),
        ({"virtual": (good[0], good[1] + 2)}, "Labels must be 0 to 1"),
        ({"virtual": (good[0][:3], good[1])}, "do not fit"),
        ({"virtual": _line({0: [-1, -2]})}, "0 virtual samples of class 1, and 2 are"),
        ({"virtual": _line({0: [-1, -2], 1: [1]})}, "1 virtual samples of class 1, and 2 are"),
        ({"virtual_train": _line({1: [1, 2]})}, r"0 virtual training samples of class 0, .*per_class"),
        ({"natural": _line({0: [-1, -2], 1: [1]})}, "1 natural samples of class 1, and 2 are"),
        ({"natural": (torch.zeros(0, 1), torch.zeros(0).long())}, "0 natural samples of class 0"),
        ({"natural": (good[0] * math.nan, good[1])}, "not finite"),
        ({"head": (torch.zeros(2, 1), torch.tensor([0.0, 1.0]))}, "gives every feature to one class"),
    ]:
        fitting = {"natural": good, "virtual": good, "virtual_train": good, "head": _HEAD, "classes": 2}
        with pytest.raises(VHLError, match=message):
            measure(**(fitting | changes))


def test_accuracy_is_that_of_all_natural_samples_whatever_the_limit():
    """Of eight samples of a class the head has one wrong; two are looked at otherwise."""
    weight, bias = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]), torch.zeros(4)
    features = torch.tensor([[2.0, 1.0]] * 7 + [[1.0, 2.0]] + [[1.0, 2.0]] * 8)
    labels = torch.tensor([0] * 8 + [1] * 8)
    terms = [measure(*[(features, labels)] * 3, (weight, bias), 2, limit=limit) for limit in (2, 8)]
    assert [one.accuracy for one in terms] == [15 / 16] * 2
    assert [one.merged_accuracy for one in terms] == [15 / 16] * 2
