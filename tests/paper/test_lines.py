"""What is measured of curves that were made up by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vhl.paper.evidence import Evidence, generator
from vhl.paper.lines import Line, lines, reached_by_all
from vhl.paper.rows import rows
from vhl.runs.digest import Digest
from vhl.runs.statistics import Mean

PLAIN, VHL = "cifar10/a0.1-e1-k10/fedavg", "cifar10/a0.1-e1-k10/fedavg-vhl"
PROX = "cifar10/a0.1-e1-k10/fedprox"
Make = Callable[..., Digest]


def lines_of(name: str, *digests: Digest) -> list[Line]:
    return list(lines(rows()[name], Evidence(digests)))


def line_of(name: str, *digests: Digest) -> Line:
    (line,) = lines_of(name, *digests)
    return line


# --- one line ------------------------------------------------------------------------------------------


def test_best_and_the_mean_of_the_last_tenth(digest: Make) -> None:
    first = digest(PLAIN, [0.1] * 17 + [0.9, 0.5, 0.6], 0)
    second = digest(PLAIN, [0.1] * 17 + [0.7, 0.3, 0.4], 1)
    line = line_of(PLAIN, first, second)
    best, final = line.over_seeds("best"), line.over_seeds("final")
    assert best is not None and (best.mean, best.count) == (pytest.approx(0.8), 2)
    assert best.std == pytest.approx(0.02**0.5)  # 0.9 and 0.7
    assert final is not None and final.mean == pytest.approx((0.55 + 0.35) / 2)


def test_rounds_and_images_to_a_target(digest: Make) -> None:
    line = line_of(
        PLAIN, digest(PLAIN, [0.1, 0.5, 0.4, 0.8], 0), digest(PLAIN, [0.1, 0.2, 0.3, 0.6], 1, samples=7)
    )
    rounds, images = line.to_target("rounds", 0.5), line.to_target("samples", 0.5)
    assert rounds is not None and (rounds.mean, rounds.count) == (3, 2)  # in round 2 and in round 4
    assert images is not None and images.mean == (20 + 28) / 2
    assert line.to_target("rounds", 0.7) is None  # one seed never got there
    assert line.to_target("rounds", None) is None


def test_our_own_target_is_what_every_seed_of_fedavg_reached(digest: Make) -> None:
    plain = [digest(PLAIN, [0.1, 0.6589], 0), digest(PLAIN, [0.1, 0.6211], 1)]
    assert reached_by_all(plain) == 0.62 and reached_by_all([]) is None
    vhl = digest(VHL, [0.63, 0.8])
    for name, own in ((PLAIN, plain), (VHL, [vhl]), (PROX, [digest(PROX, [0.3, 0.4])])):
        assert line_of(name, *plain, *own).target == 0.62
    assert line_of(VHL, vhl).target is None  # FedAvg was not run


def test_the_target_is_set_in_as_many_rounds(digest: Make) -> None:
    plain = digest(PLAIN, [0.1, 0.3, 0.5, 0.7])
    assert line_of(VHL, plain, digest(VHL, [0.1, 0.4])).target == 0.3
    assert line_of(VHL, plain, digest(VHL, [0.4] * 5)).target is None  # FedAvg did not come so far


def test_rounds_that_were_not_evaluated(digest: Make) -> None:
    plain, vhl = [None, 0.4, None, 0.5, None], [None, 0.3, None, 0.9, None]
    line = line_of(VHL, digest(PLAIN, plain), digest(VHL, vhl))
    assert line.target == 0.5 and line.speed_up == 1.0
    assert line.gain == Mean(pytest.approx(0.4), 0.0, 1)


def test_speed_up_is_fedavgs_rounds_over_its_own(digest: Make) -> None:
    plain = [digest(PLAIN, [0.1] * 11 + [0.6] * 3, 0), digest(PLAIN, [0.1] * 7 + [0.6] * 7, 1)]  # 12 and 8
    vhl = [digest(VHL, [0.1] * 3 + [0.6] * 11, 0), digest(VHL, [0.1] * 5 + [0.6] * 9, 2)]  # 4 and 6
    assert line_of(VHL, *plain, *vhl).speed_up == pytest.approx(12 / 4)  # of the seed of both
    assert line_of(PLAIN, *plain, *vhl).speed_up == pytest.approx(1.0)
    slow = digest(PROX, [0.1] * 14)
    assert line_of(PROX, *plain, slow).speed_up is None  # never
    assert line_of(VHL, *vhl).speed_up is None  # over nothing
    assert line_of(VHL, *plain, vhl[1]).speed_up is None  # no seed of both


def test_gains_are_paired_by_seed(digest: Make) -> None:
    plain = [digest(PLAIN, [best, 0.1], seed) for seed, best in ((0, 0.5), (1, 0.7), (2, 0.1))]
    vhl = [digest(VHL, [0.1, best], seed) for seed, best in ((1, 0.8), (0, 0.64), (5, 0.99))]
    gain = line_of(VHL, *plain, *vhl).gain
    assert gain is not None and gain.count == 2
    assert gain.mean == pytest.approx((0.14 + 0.10) / 2)  # of seeds 0 and 1
    assert gain.std == pytest.approx(0.0008**0.5)
    assert line_of(PLAIN, *plain).gain is None
    assert line_of(VHL, *vhl).gain is None
    assert line_of(VHL, plain[2], *vhl).gain is None  # no seed has both


def test_a_gain_is_over_the_same_algorithm(digest: Make) -> None:
    digests = [digest(PLAIN, [0.1]), digest(PROX, [0.3]), digest(f"{PROX}-vhl", [0.8])]
    gain = line_of(f"{PROX}-vhl", *digests).gain
    assert gain is not None and gain.mean == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("name", "rounds", "truncated"),
    [
        (PLAIN, 999, True),
        (PLAIN, 1000, False),
        (PLAIN, 1001, False),
        ("cifar10/a0.1-e5-k10/fedavg", 399, True),
        ("cifar10/a0.1-e5-k10/fedavg", 400, False),
    ],
)
def test_a_run_that_is_shorter_than_the_papers(digest: Make, name: str, rounds: int, truncated: bool) -> None:
    assert line_of(name, digest(name, [0.1] * rounds)).truncated == truncated


# --- several lines -------------------------------------------------------------------------------------


def test_a_line_for_each_number_of_rounds(digest: Make) -> None:
    """The shorter line has the longer run too, as it was then."""
    long, short = lines_of(VHL, digest(VHL, [0.1, 0.2, 0.9], 0), digest(VHL, [0.3, 0.4], 1))
    assert (long.rounds, list(long.runs)) == (3, [0]) and (short.rounds, list(short.runs)) == (2, [0, 1])
    best = short.over_seeds("best")
    assert best is not None and best.mean == pytest.approx((0.2 + 0.4) / 2)


def test_a_line_for_each_profile_and_generator(digest: Make) -> None:
    found = lines_of(
        VHL,
        digest(VHL, [0.1]),
        digest(VHL, [0.2], virtual="noise"),
        digest(VHL, [0.3], virtual="noise", profile="release"),
        digest(PLAIN, [0.05]),
        digest(PLAIN, [0.25], profile="release"),
    )
    cells = {(line.choice.profile, generator(line.experiment)): cell(line) for line in found}
    assert cells == {
        ("paper", "stylegan"): (0.1, 0.05, 0.05),
        ("paper", "noise"): (0.2, 0.05, 0.15),
        ("release", "noise"): (0.3, 0.25, 0.05),  # against its own profile
    }


def cell(line: Line) -> tuple[Any, ...]:
    """Best, target and gain of one seed."""
    best, gain = line.over_seeds("best"), line.gain
    assert best is not None and gain is not None
    return pytest.approx(best.mean), line.target, pytest.approx(gain.mean)


def test_a_row_that_was_not_run(digest: Make) -> None:
    assert lines_of(VHL, digest(PLAIN, [0.1])) == []


def test_what_a_run_did_for_another_row_s_sake_does_not_count(digest: Make) -> None:
    """A search of 60 rounds that is the beginning of a row of 200."""
    run = digest("methods/fedadam/plain", [0.1] * 59 + [0.3] + [0.9] * 140)
    short, long = (
        list(lines(rows()[name], Evidence([run])))
        for name in ("search/fedadam/server_lr-0.01", "methods/fedadam/plain")
    )
    assert [(line.rounds, line.over_seeds("best").mean) for line in short] == [(60, 0.3)]
    assert [line.rounds for line in long] == [200]
