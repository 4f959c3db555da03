"""Running means, and seeds together."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from vhl.report.curves import Seed, how_to_read, running_mean, series
from vhl.report.figure import Curves
from vhl.report.looks import Look

LOOK = Look(0)


def seed(values: list[float | None], rounds: list[int] | None = None, **places: list[float]) -> Seed:
    own = {"round": rounds or list(range(1, len(values) + 1)), **places}
    return Seed.of(values, {name: np.array(column, dtype=float) for name, column in own.items()})


@pytest.mark.parametrize("window", [1, 2, 3, 5, 51])
def test_a_running_mean_is_over_rounds_not_over_values(window: int) -> None:
    rng = np.random.default_rng(0)
    rounds = np.sort(rng.choice(200, 60, replace=False)).astype(float)
    values = rng.random(60)
    values[7] = 1e30  # what a spike leaves must not be lost in it
    expected = [
        statistics.mean(v for r, v in zip(rounds, values, strict=True) if abs(r - here) <= window // 2)
        for here in rounds
    ]
    np.testing.assert_allclose(running_mean(rounds, values, window), expected, rtol=1e-12)


def test_seeds_together_in_the_rounds_that_all_have() -> None:
    """A seed is smoothed over all its rounds before that: the first one's second round counts."""
    own = series(
        "a",
        LOOK,
        [
            seed([1.0, 4.0, 7.0, 9.0], images=[10, 20, 30, 40]),
            seed([3.0, None, 5.0, float("nan")], images=[30, 40, 50, 60]),
        ],
        [3],
    )
    assert own and own.seeds == 2 and own.marked
    assert own.places["round"].tolist() == [1, 3] and own.places["images"].tolist() == [20, 40]
    every, smooth = own.bands[1], own.bands[3]
    assert (every.mean.tolist(), every.low.tolist(), every.high.tolist()) == ([2, 6], [1, 5], [3, 7])
    assert smooth.mean.tolist() == pytest.approx([(2.5 + 3) / 2, (20 / 3 + 5) / 2])


def test_one_seed_has_no_band_and_many_rounds_no_marks() -> None:
    own = series("a", LOOK, [seed([0.5] * 10), seed([None])])
    assert own and own.seeds == 1 and not own.marked and list(own.bands) == [1]
    assert own.bands[1].low is own.bands[1].high is None


def test_no_round_in_common_is_no_curve() -> None:
    assert series("a", LOOK, []) is None and series("a", LOOK, [seed([None])]) is None
    assert series("a", LOOK, [seed([1.0], [1]), seed([1.0], [2])]) is None


def test_how_to_read() -> None:
    one, two = (series("a", LOOK, [seed([1.0, 2.0])] * count, [3]) for count in (1, 2))
    assert one and two
    plain = Curves(axes={}, series=[one])
    assert how_to_read([plain, Curves(axes={}, series=[], window=9)]) == ""
    assert how_to_read([plain, Curves(axes={}, series=[two], window=3)]) == (
        "bold: running mean over 3 rounds; faint: every round; "
        "mean of up to 2 seeds, band from the lowest to the highest"
    )
