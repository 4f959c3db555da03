"""What counts as the same experiment, and which runs stand for a row."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vhl.experiment import Experiment
from vhl.paper.evidence import Choice, Evidence, at, generator, identity, lengths
from vhl.paper.rows import rows
from vhl.runs.digest import Digest

PLAIN, VHL = "cifar10/a0.1-e1-k10/fedavg", "cifar10/a0.1-e1-k10/fedavg-vhl"
Make = Callable[..., Digest]


def curves(runs: Any) -> dict[int, list[float | None]]:
    """Accuracies by seed."""
    return {seed: [record.accuracy for record in run.records] for seed, run in runs.items()}


# --- identity ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "another"),
    [
        ({"seeds": {"model": 5, "sampling": 6, "batches": 7}}, False),
        ({"rounds": 17}, False),
        ({"engine": {"precision": "fp32", "lanes": 3}, "keep_at": [3], "name": "other"}, False),
        ({"seeds": {"data": 1}}, True),
        ({"training": {"keep_momentum": True}}, True),
        ({"profile": "release"}, True),
    ],
)
def test_what_makes_another_experiment(settings: dict[str, Any], another: bool) -> None:
    """More in tests/runs/test_identity.py."""
    experiment = rows()[VHL].experiment()
    assert (identity(experiment.with_(**settings)) != identity(experiment)) == another


@pytest.mark.parametrize(
    ("objective", "matters"), [("plain", False), ("vfa", False), ("vftl", True), ("naive", True)]
)
def test_virtual_data_matter_where_they_are_used(objective: str, matters: bool) -> None:
    one = rows()[VHL].experiment("paper", "stylegan").with_(objective=objective)
    other = one.with_(virtual={"name": "noise", "per_class": 3})
    assert (identity(one) != identity(other)) == matters


# --- runs of a row -------------------------------------------------------------------------------------


def test_seeds_of_one_experiment_stand_together(digest: Make) -> None:
    evidence = Evidence([digest(PLAIN, [0.1], 0), digest(PLAIN, [0.2, 0.3], 4), digest(VHL, [0.9], 0)])
    assert curves(evidence.of(rows()[PLAIN].experiment())) == {0: [0.1], 4: [0.2, 0.3]}
    assert curves(evidence.of(rows()[VHL].experiment())) == {0: [0.9]}
    assert evidence.of(rows()["cifar10/a0.1-e1-k10/fedprox"].experiment()) == {}


def test_of_two_runs_of_a_seed_the_longer_counts(digest: Make) -> None:
    both = [digest(PLAIN, [0.1, 0.2], 3), digest(PLAIN, [0.3, 0.4, 0.5], 3)]
    for order in (both, both[::-1]):
        assert curves(Evidence(order).of(rows()[PLAIN].experiment())) == {3: [0.3, 0.4, 0.5]}


def test_runs_are_found_by_every_row_that_is_their_experiment(digest: Make) -> None:
    evidence = Evidence([digest("further/lambda-1.0/fedavg", [0.5])])
    for name in (VHL, "further/vhl/fedavg", "further/batch-128/fedavg", "further/tap-last/fedavg"):
        (runs,) = evidence.choices(rows()[name]).values()
        assert curves(runs) == {0: [0.5]}
    for name in (PLAIN, "further/lambda-2.0/fedavg", "further/noise/fedavg", "further/naive/fedavg"):
        assert evidence.choices(rows()[name]) == {}


def test_choices_of_profile_and_virtual_data(digest: Make) -> None:
    evidence = Evidence(
        [
            digest(PLAIN, [0.1]),
            digest(PLAIN, [0.2], profile="release"),
            digest(VHL, [0.3]),
            digest(VHL, [0.4], virtual="noise"),
            digest(VHL, [0.5], 1, virtual="noise"),
            digest(VHL, [0.6], profile="release", virtual="noise"),
            digest(VHL, [0.7], virtual={"name": "noise", "per_class": 7}),  # `--virtual` cannot ask for it
        ]
    )
    plain = evidence.choices(rows()[PLAIN])
    assert {choice.profile: curves(runs) for choice, runs in plain.items()} == {
        "paper": {0: [0.1]},
        "release": {0: [0.2]},
    }
    assert {choice.virtual for choice in plain} == {None}
    found = {}
    assert len(evidence.choices(rows()[VHL])) == 3
    for choice, runs in evidence.choices(rows()[VHL]).items():
        virtual = choice.experiment(rows()[VHL]).virtual
        found[choice.profile, virtual.name, virtual.per_class] = curves(runs)
    assert found == {
        ("paper", "stylegan", None): {0: [0.3]},
        ("paper", "noise", None): {0: [0.4], 1: [0.5]},
        ("release", "noise", None): {0: [0.6]},
    }
    (noise,) = [runs for choice, runs in evidence.choices(rows()["further/noise/fedavg"]).items()
                if choice.profile == "paper"]  # fmt: skip
    assert curves(noise) == {0: [0.4], 1: [0.5]}


def test_runs_of_another_row_with_the_same_choice(digest: Make) -> None:
    """A row without virtual data is the same with every generator, but not with every profile."""
    evidence = Evidence([digest(PLAIN, [0.1]), digest(VHL, [0.3]), digest(VHL, [0.4], profile="release")])
    released = Choice.of(digest(VHL, [0.4], profile="release").experiment)
    noise = Choice.of(digest(VHL, [0.4], virtual="noise").experiment)
    assert curves(evidence.runs(rows()[PLAIN], noise)) == {0: [0.1]}
    assert evidence.runs(rows()[PLAIN], released) == {}
    assert curves(evidence.runs(rows()[VHL], released)) == {0: [0.4]}
    assert evidence.runs(rows()[VHL], noise) == {}


@pytest.mark.parametrize("profile", ["paper", "release"])
@pytest.mark.parametrize("name", [PLAIN, VHL, "further/naive/fedavg", "feddf/a0.1/fedavg-vhl"])
@pytest.mark.parametrize("virtual", ["stylegan", "noise", "dataset:tiny-imagenet"])
def test_a_choice_makes_its_experiment_again(name: str, profile: Any, virtual: str) -> None:
    experiment = rows()[name].experiment(profile, virtual)
    again = Choice.of(Experiment(**json.loads(json.dumps(experiment.table())))).experiment(rows()[name])
    assert identity(again) == identity(experiment)


# --- their lengths -------------------------------------------------------------------------------------


def test_runs_as_they_were_after_some_rounds(digest: Make) -> None:
    runs = {seed: digest(PLAIN, [seed / 10] * rounds, seed) for seed, rounds in ((2, 5), (0, 3), (1, 3))}
    assert lengths(runs) == [5, 3]
    assert curves(at(runs, 3)) == {0: [0.0] * 3, 1: [0.1] * 3, 2: [0.2] * 3}
    assert list(at(runs, 3)) == [0, 1, 2]  # in order
    assert curves(at(runs, 4)) == {2: [0.2] * 4} and at(runs, 6) == {} and lengths({}) == []


@pytest.mark.parametrize(
    ("name", "virtual", "word"),
    [
        (PLAIN, "noise", "–"),
        ("further/vfa/fedavg", "stylegan", "–"),
        (VHL, "decoder", "decoder"),
        ("further/vftl/fedavg", "noise", "noise"),
        (VHL, "dataset:tiny-imagenet", "tiny-imagenet"),
        ("further/tiny-imagenet/fedavg", "noise", "tiny-imagenet"),
    ],
)
def test_virtual_data_in_a_word(name: str, virtual: str, word: str) -> None:
    assert generator(rows()[name].experiment("paper", virtual)) == word


def test_all_digests_below_a_folder(digest: Make, tmp_path: Path) -> None:
    digest(PLAIN, [0.1, 0.2]).write(tmp_path / "one.json")
    digest(PLAIN, [0.3], 1).write(tmp_path / "deeper" / "two.json")
    (tmp_path / "README.md").write_text("no digest", encoding="utf-8")
    found = Evidence.read(tmp_path).of(rows()[PLAIN].experiment())
    assert curves(found) == {0: [0.1, 0.2], 1: [0.3]}
    assert Evidence.read(tmp_path / "absent").choices(rows()[PLAIN]) == {}


def test_a_file_that_is_no_digest_is_named(tmp_path: Path, complains: Any) -> None:
    (tmp_path / "x.json").write_text("{}", encoding="utf-8")
    with complains(tmp_path / "x.json"):
        Evidence.read(tmp_path)


def test_of_a_method_with_a_classifier_retrained_at_the_end_whole_runs_alone_count(digest: Make) -> None:
    name = "methods/ccvr/plain"
    evidence = Evidence([digest(name, [0.9, 0.1, 0.5])])
    runs = evidence.of(rows()[name].experiment())
    assert curves(runs) == {0: [None, None, 0.5]}
    assert list(at(runs, 3)) == [0] and not at(runs, 2)
    for row, counts in ((name, False), (PLAIN, True)):  # of four rounds three were done
        stopped = replace(digest(row, [0.9, 0.1, 0.5]), experiment=digest(row, [0.1] * 4).experiment)
        assert bool(Evidence([stopped]).of(rows()[row].experiment())) == counts


@pytest.mark.parametrize("name", ["light/fixed-statistics/plain", "light/lower-rate/plain"])
def test_before_its_training_changes_a_run_does_not_count(name: str, digest: Make) -> None:
    for rounds, counts in ((150, False), (151, True)):
        found = Evidence([digest(name, [0.5] * rounds)]).of(rows()[name].experiment())
        assert bool(found) == counts
