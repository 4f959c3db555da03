"""Verdicts on hand-written runs; tests/runs/test_statistics.py computes intervals by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from vhl.report.verdict import Verdict, verdicts
from vhl.runs.compare import compare
from vhl.runs.folder import RunFolder
from vhl.runs.statistics import Difference

Method = Callable[..., list[RunFolder]]

MANY = {"test_samples": 10**9}
"""So many test images that they leave nothing to chance."""


@pytest.fixture
def method(write: Callable[..., RunFolder], record: Any, tmp_path: Path) -> Method:
    """Runs of one method, one for each seed: by default from 0; accuracies of each round a seed."""

    def runs(
        by_seed: Sequence[Sequence[float]],
        seeds: Sequence[int] = range(9),
        compute: float = 1.0,
        numbers: Mapping[str, Any] = MappingProxyType({}),
        problem: Mapping[str, Any] = MappingProxyType(MANY),
        **settings: Any,
    ) -> list[RunFolder]:
        made, settings = [], {"rounds": len(by_seed[0]), **settings}
        for seed, accuracies in zip(seeds, by_seed, strict=False):
            rounds = [record(i, a, compute=compute, **numbers) for i, a in enumerate(accuracies, 1)]
            folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
            made.append(
                write(folder, rounds, problem=problem, seeds={"batches": seed, "model": seed}, **settings)
            )
        return made

    return runs


def only(runs: list[RunFolder], target: float | None = None) -> Verdict:
    (verdict,) = verdicts(compare(runs, target))
    return verdict


# --- numbers -------------------------------------------------------------------------------------------


def test_differences_are_of_seeds_and_of_so_many_test_images(method: Method) -> None:
    """Differences .02, .03, .07 of the last round; of the best .04, .03, .07."""
    few = {"problem": {"test_samples": 300}}
    plain = method([[0.1, 0.50], [0.1, 0.60], [0.1, 0.40]], objective="plain", **few)
    found = only(plain + method([[0.54, 0.52], [0.1, 0.63], [0.1, 0.47]], **few))
    for gain, expected in ((found.final, [0.02, 0.03, 0.07]), (found.best, [0.04, 0.03, 0.07])):
        by_hand = Difference.of(expected, 300)
        assert (gain.mean, gain.margin) == pytest.approx((by_hand.mean, by_hand.margin))


def test_only_seeds_that_both_have_are_paired(method: Method) -> None:
    """In whatever order they were named: seed 2 has .1 against .2, seed 5 has .3 against .5."""
    plain = method([[0.1], [0.3], [0.9]], seeds=[2, 5, 7], objective="plain")
    ours = method([[0.5], [0.2], [0.0]], seeds=[5, 2, 1])
    found = only(plain + ours)
    assert found.final.seeds == 2 and found.final.mean == pytest.approx(0.15)


def test_no_verdict_without_a_seed_in_common(method: Method) -> None:
    runs = method([[0.1]], seeds=[0], objective="plain") + method([[0.5]], seeds=[1])
    assert list(verdicts(compare(runs))) == []


def test_one_method_alone_has_no_verdict(method: Method) -> None:
    assert list(verdicts(compare(method([[0.1], [0.2]])))) == []


# --- partners ------------------------------------------------------------------------------------------


def test_the_partner_differs_in_the_objective_and_the_virtual_data_alone(method: Method) -> None:
    """Where there is none, the first row is what to compare with."""
    runs = [
        *method([[0.1]], objective="naive", training={"lr": 0.9}),
        *method([[0.1]], objective="plain"),
        *method([[0.2]], objective="plain", training={"lr": 0.5}),
        *method([[0.3]] * 2, seeds=[4, 0], objective="plain", training={"lr": 0.5}, algorithm="fedprox"),
        *method([[0.4]], training={"lr": 0.5}, virtual={"name": "decoder"}, name="x", device="cpu"),
        *method([[0.5]], training={"lr": 0.5}, algorithm="fedprox", objective="naive"),
        *method([[0.6]], training={"lr": 0.7}),
    ]
    rows = compare(runs).rows
    assert len(rows) == 7
    pairs = [(v.row, v.against) for v in verdicts(compare(runs))]
    places = [
        ([r.label for r in rows].index(a.label), [r.label for r in rows].index(b.label)) for a, b in pairs
    ]
    assert places == [(1, 0), (2, 0), (3, 0), (4, 2), (5, 3), (6, 0)]


def test_another_problem_is_no_partner(method: Method) -> None:
    runs = [
        *method([[0.1]], partition={"name": "lda", "alpha": 0.9}),
        *method([[0.2]], partition={"name": "lda", "alpha": 0.1}, objective="plain"),
        *method([[0.3]], partition={"name": "lda", "alpha": 0.5}),
    ]
    assert list(verdicts(compare(runs))) == []
    more = method([[0.4]], partition={"name": "lda", "alpha": 0.5}, algorithm="fedprox")
    assert "vhl partition.alpha=0.5" in only(runs + more).against.label


def test_a_pair_is_told_once_whichever_comes_first(method: Method) -> None:
    ours, plain = method([[0.6]]), method([[0.5]], objective="plain")
    for runs in (ours + plain, plain + ours):
        found = only(runs)
        assert found.row.label == "fedavg + vhl" and found.final.mean == pytest.approx(0.1)


def test_only_rounds_that_both_have_done_are_compared(method: Method) -> None:
    """As a sweep looks while its second method trains."""
    plain = method([[0.1, 0.2, 0.3, 0.9]], objective="plain")
    found = only(plain + method([[0.2, 0.4]], rounds=4))
    assert found.final.mean == pytest.approx(0.2) and found.best.mean == pytest.approx(0.2)
    assert (
        "40.0 % instead of 20.0 % over the last tenth of the rounds of the 2 that both have done so far"
        in (found.text)
    )
    assert "so far" not in only(plain + method([[0.2, 0.4, 0.5, 0.6]])).text


# --- words ---------------------------------------------------------------------------------------------


def words(runs: list[RunFolder], target: float | None = None) -> str:
    return only(runs, target).text


def test_the_whole_sentence(method: Method) -> None:
    """Both seeds gain nine points in the last tenth: nothing is left to chance."""
    plain = method([[0.50, 0.60], [0.52, 0.60]], objective="plain")
    ours = method([[0.70, 0.69], [0.72, 0.69]], compute=2.5)
    assert words(plain + ours) == (
        "fedavg + vhl is better than fedavg + plain: 69.0 % instead of 60.0 % over the last tenth of the "
        "rounds (+9.0 points), +11.0 in the best one. The 95 % interval over 2 paired seeds and "
        "1,000,000,000 test images is +9.0 to +9.0 points. A step costs 2.50 times the compute; it reached "
        "60 % after 1 round instead of 2, with 0.50 times the images."
    )


@pytest.mark.parametrize(
    ("own", "word", "points"),
    [(0.6, "is better than", "+10.0"), (0.4, "is worse than", "-10.0"), (0.5, "cannot be told from", "+0.0")],
)
def test_one_seed_is_no_proof(method: Method, own: float, word: str, points: str) -> None:
    text = words(method([[0.5]], objective="plain") + method([[own]]))
    assert f"fedavg + vhl {word} fedavg + plain: " in text and f"({points} points)" in text
    assert "one seed: an indication, no proof" in text and "95 %" not in text


@pytest.mark.parametrize(
    ("own", "word", "chance"),
    [
        ([0.60, 0.61], "is better than", False),
        ([0.40, 0.39], "is worse than", False),
        ([0.60, 0.50], "cannot be told from", True),
        ([0.40, 0.50], "cannot be told from", True),
        ([0.50, 0.50], "cannot be told from", True),
    ],
)
def test_how_sure_it_is(method: Method, own: list[float], word: str, chance: bool) -> None:
    """Against .5 twice: gains of .10 and .11 are sure, of .10 and 0 not."""
    text = words(method([[0.5], [0.5]], objective="plain") + method([[a] for a in own]))
    assert f"{word} fedavg + plain" in text and ("may be chance" in text) == chance


def test_the_interval_in_points(method: Method) -> None:
    text = words(method([[0.5], [0.5]], objective="plain") + method([[0.52], [0.54]]))
    assert (
        "over 2 paired seeds and 1,000,000,000 test images is -9.7 to +15.7 points: it may be chance." in text
    )  # 3 ± 12.7


@pytest.mark.parametrize(
    ("plain", "own", "cost"),
    [
        ([[0.6], [0.6]], [[0.1], [0.2]], ", and it did not reach 60 %."),
        ([[0.6], [0.6]], [[0.7], [0.2]], ", and 1 of 2 seeds reached 60 %."),
        ([[0.5], [0.7]], [[0.7], [0.7]], "; it reached 60 % after 1 round, which the other did not always."),
        ([[0.5, 0.5], [0.5, 0.5]], [[0.1, 0.6], [0.6, 0.6]], "which the other never did."),
        ([[0.1, 0.1, 0.6]], [[0.1, 0.7, 0.7]], "after 2 rounds instead of 3, with 0.67 times the images."),
    ],
)
def test_what_it_cost(method: Method, plain: Any, own: Any, cost: str) -> None:
    text = words(method(plain, objective="plain") + method(own, compute=1.5), target=0.6)
    assert text.endswith(cost) and "A step costs 1.50 times the compute" in text


@pytest.mark.parametrize("target", [0.595, 0.604])
def test_a_target_is_not_rounded_to_one_that_was_not_set(method: Method, target: float) -> None:
    text = words(method([[0.61]], objective="plain") + method([[0.62]]), target)
    assert f"it reached {100 * target:.1f} %" in text


def test_at_equal_images(method: Method) -> None:
    """Plain has seen 4000 images after four rounds; ours had seen as many after two of its four."""
    plain = method([[0.1, 0.2, 0.3, 0.5]], objective="plain", numbers={"samples": 1000})
    ours = method([[0.2, 0.4, 0.6, 0.8]], numbers={"samples": 2000})
    text = words(plain + ours)
    assert text.endswith(
        "With the same number of images (4 thousand) it is at 40.0 % and the other at 50.0 %."
    )
    assert "80.0 % instead of 50.0 %" in text


@pytest.mark.parametrize(("samples", "said"), [(104, False), (106, True), (50, True), (1000, False)])
def test_when_equal_images_are_worth_a_word(method: Method, samples: int, said: bool) -> None:
    """Not where both had about as many; nor where the cheaper one's buy no round of the other."""
    plain = method([[0.5] * 4], objective="plain", numbers={"samples": 100})
    assert (
        "same number of images" in words(plain + method([[0.6] * 4], numbers={"samples": samples}))
    ) == said
