"""Which settings make another experiment, for each question that is asked."""

from __future__ import annotations

from typing import Any

import pytest

from vhl.experiment import Experiment
from vhl.runs.identity import LENGTH, LOSS, REPEATED, ROUNDING, UNCOUNTED, VIRTUAL, key, labels, problem

NOTHING_CHANGES: list[dict[str, Any]] = [
    {"name": "other"},
    {"device": "cpu"},
    {"checkpoint_every": 3},
    {"features_at": [1], "keep_at": [1]},
    {"engine": {"lanes": 3, "deterministic": True, "compile": True}},
]
REPETITION: list[dict[str, Any]] = [{"seeds": {kind: 1}} for kind in ("model", "sampling", "batches")]
ANOTHER_PROBLEM: list[dict[str, Any]] = [{"partition": {"alpha": 0.7}}, {"data": {"validation": 0.1}}]
ANOTHER_LOSS: list[dict[str, Any]] = [
    {"virtual": {"per_class": 7}},
    {"virtual": "decoder"},
    {"objective": "plain"},
    {"objective": {"calibration": 0.3}},
]
ANOTHER_METHOD: list[dict[str, Any]] = [
    {"training": {"lr": 0.2}},
    {"algorithm": "fedprox"},
    {"model": {"width": 8}},
    {"clients_per_round": 0.25},
    {"profile": "release"},
    {"evaluate_every": 2},
    {"seeds": {"data": 1}},  # which is another partition
    *ANOTHER_PROBLEM,
]
LONGER, ROUNDED = {"rounds": 7}, {"engine": {"precision": "fp64"}}


@pytest.mark.parametrize(
    ("ignored", "same", "different"),
    [
        (
            UNCOUNTED,
            NOTHING_CHANGES,
            [LONGER, ROUNDED, *REPETITION, *ANOTHER_LOSS, *ANOTHER_METHOD],
        ),
        (REPEATED, [*NOTHING_CHANGES, *REPETITION], [LONGER, ROUNDED, *ANOTHER_LOSS, *ANOTHER_METHOD]),
        (UNCOUNTED | LENGTH, [*NOTHING_CHANGES, LONGER], [ROUNDED, *REPETITION, *ANOTHER_METHOD]),
        (ROUNDING, [ROUNDED], [LONGER, *NOTHING_CHANGES]),
        (VIRTUAL, ANOTHER_LOSS[:2], [*ANOTHER_LOSS[2:], *ANOTHER_METHOD]),
        (REPEATED | LOSS, [*ANOTHER_LOSS, *REPETITION], [LONGER, *ANOTHER_METHOD]),
    ],
)
def test_what_is_ignored_and_nothing_else(
    ignored: set[str], same: list[dict[str, Any]], different: list[dict[str, Any]]
) -> None:
    usual = Experiment()
    for settings in (*same, *different):
        changed = usual.with_(**settings)
        assert changed != usual
        assert (key(changed, ignored) == key(usual, ignored)) == (settings in same), settings


def test_a_problem_is_its_data_and_their_partition() -> None:
    usual = problem(Experiment())
    for settings in [*ANOTHER_METHOD, *ANOTHER_LOSS, *REPETITION, LONGER]:
        assert (problem(Experiment(**settings)) == usual) == (settings not in ANOTHER_PROBLEM), settings


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ({}, {"objective": "plain"}, ("fedavg + vhl", "fedavg + plain")),
        ({}, {"device": "cpu", "name": "x", "seeds": {"model": 6}}, ("fedavg + vhl", "fedavg + vhl")),
        (
            {"algorithm": {"name": "fedprox", "mu": 0.1}},
            {"algorithm": {"name": "fedprox", "mu": 1.0}},
            ("fedprox + vhl algorithm.mu=0.1", "fedprox + vhl algorithm.mu=1.0"),
        ),
        ({"algorithm": "fedprox"}, {"algorithm": "feddyn"}, ("fedprox + vhl", "feddyn + vhl")),
        (
            {},
            {"virtual": {"per_class": 7}},
            ("fedavg + vhl virtual.per_class=unset", "fedavg + vhl virtual.per_class=7"),
        ),
        (
            {"seeds": {"data": 0, "model": 5}},
            {"seeds": {"data": 3, "model": 6}},
            ("fedavg + vhl seeds.data=0", "fedavg + vhl seeds.data=3"),
        ),
        (
            {"training": {"lr": 0.1}, "rounds": 5},
            {"training": {"lr": 0.2}, "rounds": 6},
            ("fedavg + vhl rounds=5 training.lr=0.1", "fedavg + vhl rounds=6 training.lr=0.2"),
        ),
    ],
)
def test_labels_say_what_differs(
    first: dict[str, Any], second: dict[str, Any], told: tuple[str, str]
) -> None:
    assert tuple(labels([Experiment(**first), Experiment(**second)])) == told
