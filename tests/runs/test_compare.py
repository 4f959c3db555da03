"""Comparisons of hand-written metrics with hand-computed answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from vhl.experiment import Experiment
from vhl.runs.compare import Comparison, compare, own_target
from vhl.runs.folder import RunFolder
from vhl.runs.statistics import Mean

Write = Callable[..., RunFolder]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a run folder: an accuracy a round (``None``: not evaluated), and 10 images, 100 bytes a round."""

    def write_run(
        accuracies: Sequence[float | None],
        drift: Sequence[float] | None = None,
        seconds: Sequence[tuple[float, int | None]] | None = None,
        gpu: str | None = None,
        **settings: Any,
    ) -> RunFolder:
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        (folder / "experiment.toml").write_text(Experiment(**settings).toml(), encoding="utf-8")
        machine = {"processor": "any", "cores": 2, "threads": 1, "gpu": gpu}
        (folder / "environment.json").write_text(json.dumps(machine), encoding="utf-8")
        with (folder / "metrics.jsonl").open("w", encoding="utf-8") as metrics:
            for number, accuracy in enumerate(accuracies, 1):
                record = {
                    "round": number,
                    "accuracy": accuracy,
                    "loss": {},
                    "train_accuracy": None,
                    "drift": drift[number - 1] if drift else 1.0,
                    "learning_rate": 0.1,
                    "samples": 10,
                    "compute": 1.5,
                    "bytes": 100,
                    "clients": [0],
                    "seconds": seconds[number - 1][0] if seconds else 1.0,
                    "side_by_side": seconds[number - 1][1] if seconds else None,
                }
                metrics.write(json.dumps(record) + "\n")
        return RunFolder(folder)

    return write_run


def only(comparison: Comparison) -> Any:
    return comparison.rows[0].results[0]


# --- one run -------------------------------------------------------------------------------------------


def test_a_method_that_retrains_the_classifier_at_the_end_is_judged_by_its_last_round(write: Write) -> None:
    """Before it, what is seen is FedAvg; a run that was stopped shows no more than that."""
    run = write([0.1, 0.7, 0.2, 0.6], algorithm="ccvr", rounds=4)
    found = only(compare([run], target=0.55))
    assert (found.best, found.final, found.rounds, found.samples) == (0.6, 0.6, 4, 40)
    assert only(compare([write([0.1, 0.7], algorithm="ccvr", rounds=4)])).best == 0.7


def test_best_is_the_highest_and_final_the_mean_of_the_last_tenth_of_rounds(write: Write) -> None:
    found = only(compare([write([0.9] * 18 + [0.5, 0.6])]))  # rounds 19 and 20 of 20
    assert found.best == 0.9 and found.final == pytest.approx(0.55)


@pytest.mark.parametrize(("last", "expected"), [(1.0, 0.55), (0.9, 0.6), (0.25, 0.9)])
def test_final_over_another_share_of_rounds(write: Write, last: float, expected: float) -> None:
    """Of ten rounds 0.9 are nine, and 0.25 those after round 7.5."""
    run = write([number / 10 for number in range(1, 11)])
    assert only(compare([run], last=last)).final == pytest.approx(expected)


def test_final_takes_the_evaluated_rounds_among_them(write: Write) -> None:
    every_fifth = [0.9 if number % 5 == 0 else None for number in range(1, 96)]
    run = write([*every_fifth, None, 0.2, None, None, 0.4])  # of rounds 91 to 100: 95, 97 and 100
    assert only(compare([run])).final == pytest.approx((0.9 + 0.2 + 0.4) / 3)


def test_final_of_a_run_cut_off_after_its_last_evaluation(write: Write) -> None:
    run = write([None, 0.7, None, 0.3, None, None, None, None, None, None])
    assert only(compare([run])).final == 0.3


def test_the_cost_until_the_first_round_at_the_target(write: Write) -> None:
    found = only(compare([write([None, 0.4, None, None, 0.6, 0.5, 0.8])], target=0.6))
    assert (found.rounds, found.samples, found.bytes) == (5, 50, 500)  # rounds without evaluation cost too


def test_a_target_that_was_never_reached_and_the_mean_drift(write: Write) -> None:
    found = only(compare([write([0.1, 0.2, 0.1], drift=[1.0, 2.0, 6.0])], target=0.3))
    assert (found.rounds, found.samples, found.bytes, found.drift) == (None, None, None, 3.0)


@pytest.mark.parametrize("accuracies", [[], [None, None]])
def test_a_run_that_was_never_evaluated(write: Write, complains: Any, accuracies: list[None]) -> None:
    run = write(accuracies)
    with complains(run.path, "no evaluated round"):
        compare([run])


# --- the target ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reached", "target"), [(0.8049, 0.80), (0.81, 0.81), (0.29, 0.29), (0.57, 0.57), (0.58, 0.58), (0.0, 0)]
)
def test_a_target_is_a_whole_percentage(reached: float, target: float) -> None:
    """100 * 0.29 is 28.999999999999996 in floating point, yet 29 % was reached."""
    assert own_target(reached) == target


def test_the_target_is_what_every_seed_of_the_first_method_reached(write: Write) -> None:
    runs = [
        write([0.805, 0.1]),
        write([0.7, 0.825], seeds={"model": 1}),
        write([0.99], algorithm="fedprox"),
    ]
    assert compare(runs).target == 0.8  # of 80.5 and 82.5 %
    assert compare(runs[2:]).target == 0.99


def test_each_problem_has_a_target_and_a_baseline_of_its_own(write: Write) -> None:
    easy, hard = {"name": "lda", "alpha": 1.0}, {"name": "lda", "alpha": 0.1}
    runs = [
        write([0.1, 0.9], partition=easy, objective="plain"),
        write([0.9, 0.9], partition=easy),
        write([0.1, 0.1, 0.3], partition=hard, objective="plain"),
        write([0.3], partition=hard),
    ]
    found = compare(runs)
    assert [row.target for row in found.rows] == [0.9, 0.9, 0.3, 0.3]
    assert [found.speed_up(row) for row in found.rows] == [1, 2, 1, 3]
    assert [row.target for row in compare(runs, 0.2).rows] == [0.2] * 4


def test_a_copy_of_a_run_is_no_second_seed(write: Write) -> None:
    (row,) = compare([write([0.5]), write([0.5])]).rows
    assert row.seeds == 1 and len(row.results) == 2


# --- several runs --------------------------------------------------------------------------------------


def test_mean_and_deviation_over_seeds(write: Write) -> None:
    runs = [write([accuracy], seeds={"batches": n}) for n, accuracy in enumerate((0.5, 0.6, 0.7))]
    (row,) = compare(runs).rows
    assert row.seeds == 3
    assert row.over_seeds("best") == Mean(pytest.approx(0.6), pytest.approx(0.1), 3)


def test_seeds_that_reached_the_target_are_counted(write: Write) -> None:
    runs = [write(a, seeds={"model": n}) for n, a in enumerate(([0.1, 0.6], [0.1, 0.1, 0.1, 0.6], [0.1]))]
    (row,) = compare(runs, target=0.5).rows
    rounds = row.over_seeds("rounds")
    assert rounds is not None and (rounds.mean, rounds.count) == (3, 2)
    assert row.over_all_seeds("rounds") is None and row.over_all_seeds("best") == row.over_seeds("best")
    assert compare(runs, target=0.9).rows[0].over_seeds("rounds") is None


def test_speed_up_is_over_the_first_runs(write: Write) -> None:
    slow = [write([0.1] * n + [0.6], seeds={"model": n}) for n in (9, 13)]  # rounds 10 and 14
    fast, never = write([0.1] * 3 + [0.6], objective="plain"), write([0.1], algorithm="fednova")
    comparison = compare([*slow, fast, never], target=0.5)
    assert [comparison.speed_up(row) for row in comparison.rows] == [1.0, 3.0, None]


def test_a_seed_that_never_gets_there_leaves_no_speed_up(write: Write) -> None:
    slow = write([0.1] * 9 + [0.6])
    lucky = [write(a, objective="plain", seeds={"model": n}) for n, a in enumerate(([0.6], [0.1, 0.1]))]
    for runs, speed_ups in (([slow, *lucky], [1.0, None]), ([*lucky, slow], [None, None])):
        comparison = compare(runs, 0.5)
        assert [comparison.speed_up(row) for row in comparison.rows] == speed_ups


def test_runs_that_differ_in_seeds_alone_are_one_row(write: Write) -> None:
    settings: list[dict[str, Any]] = [{}, {"seeds": {"model": 1}}, {"name": "other"}, {"rounds": 7}]
    found = compare([write([0.5], **own) for own in settings])
    assert [len(row.runs) for row in found.rows] == [3, 1]


def test_rows_keep_the_order_of_the_runs(write: Write) -> None:
    names = ["scaffold", "fedavg", "fednova"]
    comparison = compare([write([0.5], algorithm=name) for name in names])
    assert [row.label for row in comparison.rows] == [f"{name} + vhl" for name in names]


def test_time_is_of_rounds_that_had_the_machine_to_themselves(write: Write) -> None:
    """Medians 2 and 3; a run beside others, or on another machine, says nothing."""
    alone = write([0.1] * 4, seconds=[(9.0, 1), (2.0, 1), (1.0, 1), (50.0, 2)], objective="plain")
    slower = write([0.1] * 3, seconds=[(3.0, 1), (8.0, 1), (3.0, 1)])
    beside = write([0.1] * 2, seconds=[(3.0, 2), (8.0, None)], objective="naive")
    elsewhere = write([0.1], seconds=[(3.0, 1)], gpu="another", objective="vfa")
    found = compare([alone, slower, beside, elsewhere])
    assert [row.results[0].seconds for row in found.rows] == [2.0, 3.0, None, 3.0]
    assert [found.time(row) for row in found.rows] == [1.0, 1.5, None, None]
