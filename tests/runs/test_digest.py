from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from vhl.experiment import Experiment
from vhl.runs.compare import compare, result
from vhl.runs.digest import Digest
from vhl.runs.folder import RunFolder

KEPT = (
    "accuracy",
    "natural_accuracy",
    "train_accuracy",
    "virtual_accuracy",
    "drift",
    "learning_rate",
    "samples",
    "compute",
    "bytes",
    "left_out",
    "seconds",
    "side_by_side",
)


@pytest.fixture
def made(tmp_path: Path, a_record: Any) -> Path:
    """A digest of two rounds in its file."""
    records = (
        a_record(1, accuracy=0.25, left_out=[3], seconds=0.1, samples=10),
        a_record(2, accuracy=None, left_out=[], seconds=0.2, samples=10),
    )
    environment = {"gpu": "some", "packages": {"torch": "2"}}
    Digest(Experiment(rounds=2), records, environment, 0.5).write(tmp_path / "deep" / "x.json")
    return tmp_path / "deep" / "x.json"


# --- a run and its file --------------------------------------------------------------------------------


def test_a_run_has_the_same_numbers_by_its_digest(finished: Path, tmp_path: Path) -> None:
    """By six significant digits; and exactly where a number is a count."""
    run = RunFolder(finished)
    Digest.of(run).write(tmp_path / "x.json")
    found = Digest.read(tmp_path / "x.json")
    records = run.records()
    assert len(records) == len(found.records) == 5
    accuracies = [record.accuracy for record in records if record.accuracy is not None]
    for target in (0.0, 1e-5 + sum(accuracies) / 5, max(accuracies) - 1e-5, 2.0):
        mine, theirs = result(found.records, target), compare([run], target).rows[0].results[0]
        assert (mine.rounds, mine.samples, mine.bytes) == (theirs.rounds, theirs.samples, theirs.bytes)
        for measure in ("best", "final", "drift", "compute"):
            assert getattr(mine, measure) == pytest.approx(getattr(theirs, measure), rel=1e-5)
    for mine, theirs in zip(found.records, records, strict=True):
        assert mine.round == theirs.round and mine.loss == {} and mine.clients == []
        for name in KEPT:
            value = getattr(theirs, name)
            rounded = float(f"{value:.6g}") if isinstance(value, float) else value
            assert getattr(mine, name) == rounded
    assert found.records[0].virtual_accuracy is not None and found.records[0].samples > 0


def test_a_digest_has_what_the_run_was(finished: Path, tmp_path: Path, experiment: Experiment) -> None:
    Digest.of(RunFolder(finished)).write(tmp_path / "x.json")
    found = Digest.read(tmp_path / "x.json")
    assert found.experiment == experiment
    assert found.environment == json.loads((finished / "environment.json").read_text(encoding="utf-8"))
    data = json.loads((finished / "data.json").read_text(encoding="utf-8"))
    assert found.heterogeneity == pytest.approx(data["heterogeneity"], rel=1e-5)
    assert Digest.of(RunFolder(finished)) == found


def test_a_file_is_small_and_has_a_line_for_each_column(made: Path) -> None:
    lines = made.read_text(encoding="utf-8").splitlines()
    (accuracy,) = [line for line in lines if '"accuracy"' in line]
    assert accuracy.strip() == '"accuracy": [0.25, null],'
    columns = json.loads("\n".join(lines))["columns"]
    assert list(columns) == list(KEPT)
    assert columns["samples"] == {"every": 10} and columns["natural_accuracy"] == {"every": None}
    assert columns["left_out"] == [[3], []] and columns["seconds"] == [0.1, 0.2]


def test_what_is_written_is_read(made: Path) -> None:
    found = Digest.read(made)
    assert [record.round for record in found.records] == [1, 2]
    assert [record.accuracy for record in found.records] == [0.25, None]
    assert [record.left_out for record in found.records] == [[3], []]
    assert [record.samples for record in found.records] == [10, 10]
    assert found.environment["packages"] == {"torch": "2"} and found.heterogeneity == 0.5
    found.write(made.with_name("again.json"))
    assert made.with_name("again.json").read_bytes() == made.read_bytes()


@pytest.mark.parametrize("drifts", [[float("inf"), 1.0], [float("inf")] * 2, [1e30]])
def test_a_run_that_diverged_can_be_kept(tmp_path: Path, drifts: list[float], a_record: Any) -> None:
    records = tuple(a_record(n, accuracy=0.1, drift=drift) for n, drift in enumerate(drifts, 1))
    Digest(Experiment(), records, {}, 0.5).write(tmp_path / "x.json")
    assert [record.drift for record in Digest.read(tmp_path / "x.json").records] == drifts


@pytest.mark.parametrize("rounds", [1, 3, 5, 9])
def test_the_first_rounds(finished: Path, rounds: int) -> None:
    whole = Digest.of(RunFolder(finished))
    cut = whole.first(rounds)
    assert [record.round for record in cut.records] == list(range(1, min(rounds, 5) + 1))
    assert cut.records == whole.records[:rounds] and cut.experiment == whole.experiment
    assert (cut.environment, cut.heterogeneity) == (whole.environment, whole.heterogeneity)


# --- what is none --------------------------------------------------------------------------------------


def test_a_run_without_a_round(finished: Path, tmp_path: Path, complains: Any) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "begun"))
    (folder / "metrics.jsonl").unlink()
    with complains(folder, "no finished round"):
        Digest.of(RunFolder(folder))
    with complains(tmp_path / "absent"):
        Digest.of(RunFolder(tmp_path / "absent"))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"{}", b'"x"', b"\xff\xfe"])
def test_a_file_that_is_no_digest(tmp_path: Path, complains: Any, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with complains(tmp_path / "x.json", "no digest"):
        Digest.read(tmp_path / "x.json")


def test_a_file_that_is_not_there(tmp_path: Path, complains: Any) -> None:
    with complains(tmp_path / "x.json"):
        Digest.read(tmp_path / "x.json")


@pytest.mark.parametrize("part", ["experiment", "environment", "heterogeneity", "rounds", "columns"])
def test_a_digest_that_lacks_something(made: Path, complains: Any, part: str) -> None:
    table = json.loads(made.read_text(encoding="utf-8"))
    del table[part]
    made.write_text(json.dumps(table), encoding="utf-8")
    with complains(made, part):
        Digest.read(made)


@pytest.mark.parametrize("column", [[0.1], [0.1, 0.2, 0.3], ["a", 0.2], {"never": 1}, 3, None])
def test_a_column_that_is_too_short_or_none(made: Path, complains: Any, column: Any) -> None:
    table = json.loads(made.read_text(encoding="utf-8"))
    table["columns"]["accuracy"] = column
    made.write_text(json.dumps(table), encoding="utf-8")
    with complains(made, "no digest"):
        Digest.read(made)


@pytest.mark.parametrize("columns", [[], {}, 3])
def test_columns_that_are_none(made: Path, complains: Any, columns: Any) -> None:
    table = json.loads(made.read_text(encoding="utf-8"))
    made.write_text(json.dumps({**table, "columns": columns}), encoding="utf-8")
    with complains(made, "no digest"):
        Digest.read(made)


def test_an_experiment_of_another_version(made: Path, complains: Any) -> None:
    text = made.read_text(encoding="utf-8").replace('"digits"', '"dijits"')
    made.write_text(text, encoding="utf-8")
    with complains(made, "no experiment of this version", "'digits'"):
        Digest.read(made)


def test_what_the_theory_measured_is_kept(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    theory = {"virtual": {"name": "noise"}, "terms": [{"round": 2, "distance": 1.23456789}]}
    (tmp_path / "run" / "theory.json").write_text(json.dumps(theory), encoding="utf-8")
    Digest.of(RunFolder(tmp_path / "run")).write(tmp_path / "x.json")
    found = Digest.read(tmp_path / "x.json")
    assert found.theory == {"virtual": {"name": "noise"}, "terms": [{"round": 2, "distance": 1.23457}]}
    assert found.first(1).theory == found.theory and Digest.of(RunFolder(finished)).theory is None
