"""Differences between rows, and how sure they are, by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from vhl.paper.contrast import BEST, DRIFT, ROUNDS, START, Contrast, Measure, contrast
from vhl.paper.evidence import Evidence
from vhl.runs.digest import Digest
from vhl.runs.statistics import Difference

PLAIN, VHL = "cifar10/a0.1-e1-k10/fedavg", "cifar10/a0.1-e1-k10/fedavg-vhl"
FEDPROX = "cifar10/a0.1-e1-k10/fedprox"
PROX, NAIVE = "cifar10/a0.1-e1-k10/fedprox", "further/naive/fedavg"
Make = Callable[..., Digest]


def found(*digests: Digest, more: str = VHL, less: str = PLAIN, measure: Measure = BEST) -> Contrast:
    one = contrast(Evidence(digests), "with − without", more, less, measure)
    assert one is not None
    return one


# --- several seeds -------------------------------------------------------------------------------------


def test_the_mean_difference_paired_by_seed_and_its_standard_error(digest: Make) -> None:
    plain = [digest(PLAIN, [best], seed) for seed, best in enumerate((0.50, 0.70, 0.60))]
    vhl = [digest(VHL, [best], seed) for seed, best in enumerate((0.54, 0.80, 0.67))]
    one = found(*plain, *vhl)
    assert one.difference.mean == pytest.approx((0.04 + 0.10 + 0.07) / 3)
    assert one.difference.error == pytest.approx(0.03 / 3**0.5)  # √((0.03² + 0.03² + 0)/2)
    assert (one.difference.seeds, one.rounds, one.setting, one.difference.freedom) == (
        3,
        1,
        "paper, stylegan",
        2,
    )
    assert str(one) == "with − without: +7.0 ± 1.7 points (paper, stylegan, 3 seeds, 1 rounds)"


def test_seeds_that_one_row_alone_has_do_not_count(digest: Make) -> None:
    plain = [digest(PLAIN, [best], seed) for seed, best in ((0, 0.5), (1, 0.6), (7, 0.0))]
    vhl = [digest(VHL, [best], seed) for seed, best in ((9, 1.0), (1, 0.7), (0, 0.8))]
    one = found(*plain, *vhl)
    assert (
        one.difference.mean == pytest.approx(0.2)
        and one.difference.error == pytest.approx(0.1)
        and one.difference.seeds == 2
    )


def test_most_seeds_go_before_most_rounds(digest: Make) -> None:
    """Both rows as they were after as many rounds."""
    plain = [digest(PLAIN, [0.1, 0.2, 0.9], 0), digest(PLAIN, [0.1, 0.3], 1)]
    vhl = [digest(VHL, [0.1, 0.4, 0.95, 0.99], 0), digest(VHL, [0.1, 0.6], 1)]
    one = found(*plain, *vhl)
    assert (one.difference.seeds, one.rounds) == (2, 2) and one.difference.mean == pytest.approx(
        (0.2 + 0.3) / 2
    )


def test_seeds_that_were_just_begun_do_not_replace_long_runs(digest: Make) -> None:
    """What a budget leaves behind: a further seed of both rows, stopped after a while."""
    plain = [digest(PLAIN, [0.1] * 11 + [0.2], seed) for seed in (0, 1)]
    vhl = [digest(VHL, [0.1] * 11 + [0.5 + seed / 10], seed) for seed in (0, 1)]
    for stopped in (1, 5):
        begun = [digest(row, [0.1] * stopped, 2) for row in (PLAIN, VHL)]
        one = found(*plain, *vhl, *begun)
        assert (one.difference.seeds, one.rounds) == (2, 12) and one.difference.mean == pytest.approx(0.35)
    alone = found(*plain[:1], *vhl[:1], *(digest(row, [0.1], 1) for row in (PLAIN, VHL)))
    assert (alone.difference.seeds, alone.rounds) == (1, 12)


def test_of_as_many_seeds_most_rounds(digest: Make) -> None:
    one = found(digest(PLAIN, [0.1, 0.2, 0.5, 0.8]), digest(VHL, [0.3, 0.4, 0.6]))
    assert (one.difference.seeds, one.rounds) == (1, 3) and one.difference.mean == pytest.approx(0.1)


def test_profiles_are_not_mixed(digest: Make) -> None:
    evidence = Evidence([digest(PLAIN, [0.1]), digest(VHL, [0.3], profile="release")])
    assert contrast(evidence, "x", VHL, PLAIN) is None


def test_generators_are_not_mixed_and_can_be_asked_for(digest: Make) -> None:
    noise = [digest(VHL, [0.3], virtual="noise"), digest(PLAIN, [0.1])]
    evidence = Evidence([*noise, digest(NAIVE, [0.2])])  # with StyleGAN
    assert contrast(evidence, "x", VHL, NAIVE) is None
    assert contrast(evidence, "x", VHL, PLAIN, virtual="stylegan") is None
    asked = contrast(evidence, "x", VHL, PLAIN, virtual="noise")
    assert asked is not None and asked.setting == "paper, noise"
    plain = contrast(Evidence([digest(PROX, [0.2]), digest(PLAIN, [0.1])]), "x", PROX, PLAIN)
    assert plain is not None and plain.setting == "paper" and plain.difference.mean == pytest.approx(0.1)


def test_rows_that_were_not_both_run(digest: Make) -> None:
    for digests in ([], [digest(PLAIN, [0.1])], [digest(VHL, [0.1])]):
        assert contrast(Evidence(digests), "x", VHL, PLAIN) is None
    assert contrast(Evidence([digest(PLAIN, [0.1], 0), digest(VHL, [0.1], 1)]), "x", VHL, PLAIN) is None


# --- one seed ------------------------------------------------------------------------------------------


def test_one_seed_borrows_the_deviation_of_other_rows(digest: Make) -> None:
    """Variances 2·0.01² and 0.02² of a row of two seeds and one of three; two runs differ by √2 of it.

    A row counts by its degrees of freedom: one and two.
    """
    others = [
        *(digest("svhn/a0.1-e1-k10/fedavg", [0.8 + change], n) for n, change in enumerate((-0.01, 0.01))),
        *(digest("fmnist/a0.1-e1-k10/fedavg", [0.5 + c], n) for n, c in enumerate((-0.02, 0.0, 0.02))),
    ]
    one = found(digest(PLAIN, [0.5]), digest(VHL, [0.6]), *others)
    assert one.difference.mean == pytest.approx(0.1) and one.difference.seeds == 1
    assert one.difference.error == pytest.approx(math.sqrt(2 * (0.0002 + 2 * 0.0004) / 3))
    assert one.difference.freedom == 3
    assert str(one).startswith("with − without: +10.0 ± 2.6 points (paper, stylegan, 1 seed, ")


def test_where_no_row_has_several_seeds_nothing_is_sure(digest: Make) -> None:
    one = found(digest(PLAIN, [0.5]), digest(VHL, [0.6]))
    assert one.difference.error is None
    assert str(one) == "with − without: +10.0 points (paper, stylegan, 1 seed, 1 rounds)"


def test_the_borrowed_deviation_is_over_runs_of_one_length(digest: Make) -> None:
    """The longest that two seeds had."""
    svhn = "svhn/a0.1-e1-k10/fedavg"
    others = [digest(svhn, [0.1, 0.3, 0.9], 0), digest(svhn, [0.2, 0.5], 1), digest(svhn, [0.7], 2)]
    one = found(digest(PLAIN, [0.5]), digest(VHL, [0.6]), *others)
    assert one.difference.error == pytest.approx(0.2)  # √2 · 0.2/√2, of 0.3 and 0.5


def test_several_seeds_do_not_borrow(digest: Make) -> None:
    wild = [digest("svhn/a0.1-e1-k10/fedavg", [best], n) for n, best in enumerate((0.1, 0.9))]
    own = [digest(name, [0.5 + gain], seed) for seed in (0, 1) for name, gain in ((PLAIN, 0.0), (VHL, 0.2))]
    assert found(*own, *wild).difference.error == pytest.approx(0.0)


# --- measures ------------------------------------------------------------------------------------------


def test_relative_measures_are_compared_by_their_ratio(digest: Make) -> None:
    plain = [digest(PLAIN, [0.1], seed, drift=drift) for seed, drift in ((0, 4.0), (1, 2.0))]
    vhl = [digest(VHL, [0.1], seed, drift=drift) for seed, drift in ((0, 1.0), (1, 1.0))]
    one = found(*plain, *vhl, measure=DRIFT)
    assert one.difference.mean == pytest.approx((math.log(1 / 4) + math.log(1 / 2)) / 2)
    assert one.difference.error == pytest.approx(math.log(2) / 2)  # √(2 · (log 2 / 2)²) / √2
    ratio = 1 / math.sqrt(8)
    shown = f"{100 * (ratio - 1):+.1f} ± {100 * ratio * math.log(2) / 2:.1f} %"
    assert str(one) == f"with − without: {shown} (paper, stylegan, 2 seeds, 1 rounds)"


def test_drift_is_the_mean_over_rounds(digest: Make) -> None:
    one = found(digest(PLAIN, [0.1] * 2, drift=3.0), digest(VHL, [0.1] * 2, drift=6.0), measure=DRIFT)
    assert one.difference.mean == pytest.approx(math.log(2)) and str(one).startswith(
        "with − without: +100.0 % "
    )


def test_rounds_to_what_fedavg_reached(digest: Make) -> None:
    """FedAvg's worst seed reached 60 %: in rounds 4 and 6; VHL in rounds 1 and 2."""
    plain = [
        digest(PLAIN, [0.1, 0.2, 0.3, 0.6, 0.65, 0.7, 0.7, 0.7], 0),
        digest(PLAIN, [0.1] * 5 + [0.604] * 3, 1),
    ]
    vhl = [digest(VHL, [0.6] * 8, 0), digest(VHL, [0.5] + [0.8] * 7, 1)]
    one = found(*plain, *vhl, measure=ROUNDS)
    assert one.difference.mean == pytest.approx((math.log(1 / 4) + math.log(2 / 6)) / 2)


def test_a_run_that_never_got_there_counts_as_if_it_did_next(digest: Make) -> None:
    digests = [
        digest(PLAIN, [0.1, 0.1, 0.1, 0.6]),
        digest(PROX, [0.1] * 4),
        digest(f"{PROX}-vhl", [0.1, 0.6, 0.6, 0.6]),
    ]
    one = found(*digests, more=f"{PROX}-vhl", less=PROX, measure=ROUNDS)
    assert one.difference.mean == pytest.approx(math.log(2 / 5))
    assert str(one).endswith("1 seed, 4 rounds; never counts as 5)")
    assert "never" not in str(found(*digests, more=f"{PROX}-vhl", less=PROX))


def test_the_start_is_the_first_tenth_of_rounds(digest: Make) -> None:
    plain, vhl = [0.1, 0.2] + [0.9] * 27, [0.3, 0.6] + [0.0] * 27
    one = found(digest(PLAIN, plain), digest(VHL, vhl), measure=START)
    assert one.difference.mean == pytest.approx(0.45 - 0.15)  # of 29 rounds two
    one = found(digest(PLAIN, [0.1, 0.9]), digest(VHL, [0.3, 0.5]), measure=START)
    assert one.difference.mean == pytest.approx(0.2)  # one at least
    plain, vhl = [None, 0.2, None] + [0.9] * 27, [0.3, None, 0.5] + [0.9] * 27
    one = found(digest(PLAIN, plain), digest(VHL, vhl), measure=START)
    assert one.difference.mean == pytest.approx(0.4 - 0.2)  # of those that were evaluated


# --- differences of differences ------------------------------------------------------------------------


def test_a_difference_of_differences() -> None:
    one = Contrast("a", BEST, Difference(0.10, 0.03, 2, 3), 20, "paper, noise")
    other = Contrast("b", BEST, Difference(0.04, 0.04, 1, 2), 30, "paper, noise")
    both = one.minus(other, "a − b")
    assert str(both) == "a − b: +6.0 ± 5.0 points (paper, noise, 2 seeds, 20 rounds)"


def test_one_experiment_counts_once_for_the_borrowed_deviation(digest: Make) -> None:
    """VHL's runs are those of six rows, SVHN's of one."""
    vhl = [digest(VHL, [0.5 + change], seed) for seed, change in ((1, 0.01), (2, -0.01))]
    svhn = [digest("svhn/a0.1-e1-k10/fedavg", [0.5 + c], seed) for seed, c in ((0, 0.03), (1, -0.03))]
    pair = [digest(FEDPROX, [0.1]), digest(PLAIN, [0.3])]
    one = contrast(Evidence([*vhl, *svhn, *pair]), "", FEDPROX, PLAIN)
    assert one is not None and one.difference.error == pytest.approx(math.sqrt(2 * (0.0002 + 0.0018) / 2))
