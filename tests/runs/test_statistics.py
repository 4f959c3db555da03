"""Means and paired differences, by hand and by SciPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from vhl.runs.statistics import Difference, Mean

T = {1: 12.7062, 2: 4.30265, 5: 2.57058, math.inf: 1.959964}
"""97.5 % quantiles of Student's t by its degrees of freedom, from a table."""


def test_mean_and_deviation_over_seeds() -> None:
    found = Mean.of([0.5, 0.6, 0.7])
    assert found is not None and found.count == 3 and found.mean == pytest.approx(0.6)
    assert found.std == pytest.approx(0.1)  # √((0.1² + 0 + 0.1²)/2): a sample's deviation
    assert Mean.of([0.5]) == Mean(0.5, 0.0, 1) and Mean.of([]) is None


def test_a_difference_over_three_seeds() -> None:
    """Differences .02, .03, .07: mean .04, standard deviation √.0007."""
    found = Difference.of([0.02, 0.03, 0.07])
    assert (found.seeds, found.freedom) == (3, 2) and found.mean == pytest.approx(0.04)
    assert found.error == pytest.approx((0.0007 / 3) ** 0.5)
    assert found.margin == pytest.approx(T[2] * (0.0007 / 3) ** 0.5, rel=1e-5)
    assert not found.decided and not found.told  # ±.066


@pytest.mark.parametrize("seeds", [2, 4, 20])
def test_the_interval_is_that_of_the_paired_t_test(seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    first, second = rng.normal(0.1, 1, seeds), rng.normal(0, 1, seeds)
    found, tested = Difference.of(list(first - second)), stats.ttest_rel(first, second)
    low, high = tested.confidence_interval(0.95)
    assert found.margin == pytest.approx((high - low) / 2) and found.mean == pytest.approx((high + low) / 2)
    assert found.decided == (tested.pvalue < 0.05)


@pytest.mark.parametrize("freedom", T)
def test_the_fewer_seeds_the_more_standard_errors_are_chance(freedom: float) -> None:
    assert Difference(0.1, 0.03, freedom, 3).margin == pytest.approx(0.03 * T[freedom], rel=1e-5)


def test_chance_of_the_test_images_counts_where_their_number_is_known() -> None:
    """Of 112 images both seeds get two more right: √2 of them are chance, and 1.96 √2 more than 2."""
    two, three, four = (Difference.of([more / 112] * 2, 112) for more in (2, 3, 4))
    assert two.margin == two.of_images == pytest.approx(1.959964 * 2**0.5 / 112, rel=1e-5)
    assert not two.decided and not three.decided and four.decided
    assert Difference.of([2 / 112] * 2).margin == 0


def test_chance_of_seeds_and_of_images_add_up_as_squares() -> None:
    """Differences .02 and .04 of 300 images: 12.7 × .01, and 1.96 × .01."""
    found = Difference.of([0.02, 0.04], 300)
    assert found.margin == pytest.approx((T[1] ** 2 + 1.959964**2) ** 0.5 * 0.01, rel=1e-5)


@pytest.mark.parametrize(("more", "told"), [(2, False), (3, False), (4, True), (-4, True)])
def test_one_seed_is_told_by_the_test_images_alone_and_decides_nothing(more: int, told: bool) -> None:
    """Of 359; four are more than 1.96 √4."""
    found = Difference.of([more / 359], 359)
    assert found.told == told and not found.decided and found.error is found.margin is None


def test_one_seed_borrows_the_deviation_of_what_was_repeated() -> None:
    """Variances 2·0.01² of two seeds and 0.02² of three; two runs differ by √2 of it.

    An experiment counts by its degrees of freedom: one and two.
    """
    found = Difference.of([0.1]).with_error_of([[0.79, 0.81], [0.48, 0.5, 0.52]])
    assert found.error == pytest.approx(math.sqrt(2 * (0.0002 + 2 * 0.0004) / 3))
    assert (found.mean, found.seeds, found.freedom) == (0.1, 1, 3)
    assert Difference.of([0.1]).with_error_of([[0.5]]).error is None


def test_a_difference_of_differences() -> None:
    one, other = Difference(0.10, 0.03, 2, 3), Difference(0.04, 0.04, 1, 2)
    both = one.minus(other)
    assert both.mean == pytest.approx(0.06) and both.error == pytest.approx(0.05)
    assert (both.seeds, both.freedom) == (2, 1)
    unsure = Difference.of([0.04])
    assert one.minus(unsure).error is None and unsure.minus(one).error is None
