from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from vhl.experiment import Experiment
from vhl.runs.folder import RunFolder, find_runs
from vhl.runs.record import Record


def a_record(round_: int, **measured: Any) -> Record:
    known: dict[str, Any] = {
        "loss": {"natural": 0.1 + 0.2, "virtual": 1 / 3},
        "train_accuracy": 0.5,
        "drift": 0.25,
        "learning_rate": 0.01,
        "samples": 100,
        "compute": 2.0,
        "bytes": 4_000,
        "clients": [0, 3],
        "seconds": 0.125,
    }
    return Record(round=round_, **{**known, **measured})


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


# --- records -------------------------------------------------------------------------------------------


def test_records_come_back_as_they_were(folder: RunFolder) -> None:
    records = [a_record(1), a_record(2, accuracy=0.1, per_class=[0.5, None], left_out=[3])]
    for record in records:
        folder.append(record)
    assert folder.records() == records


def test_one_line_a_round_that_any_program_can_read(folder: RunFolder) -> None:
    folder.append(a_record(1))
    folder.append(a_record(2, accuracy=0.75))
    lines = (folder.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2]
    assert json.loads(lines[1])["accuracy"] == 0.75


def test_a_diverging_run_stays_readable(folder: RunFolder) -> None:
    folder.append(a_record(1, drift=math.inf, loss={"natural": math.nan}))
    folder.append(a_record(2))
    folder.cut_back(1)
    (record,) = folder.records()
    assert record.drift == math.inf and math.isnan(record.loss["natural"])


def test_a_line_cut_off_by_a_kill_is_no_record(folder: RunFolder) -> None:
    folder.append(a_record(1))
    folder.append(a_record(2))
    whole = (folder.path / "metrics.jsonl").read_bytes()
    first = whole.index(b"\n") + 1
    for length in (*range(first, len(whole), 7), len(whole) - 1):
        (folder.path / "metrics.jsonl").write_bytes(whole[:length])
        assert folder.records() == [a_record(1)]


@pytest.mark.parametrize("line", [b'{"round": 2}', b"", b'{"round', b"\xff\xfe"])
def test_a_damaged_line_is_named(folder: RunFolder, complains: Any, line: bytes) -> None:
    folder.append(a_record(1))
    file = folder.path / "metrics.jsonl"
    file.write_bytes(file.read_bytes() + line + b"\n")
    with complains(file, "line 2"):
        folder.records()


def test_before_the_first_round_there_is_no_record(folder: RunFolder) -> None:
    assert folder.records() == []


def test_cut_back_drops_the_rounds_after(folder: RunFolder) -> None:
    for round_ in range(1, 5):
        folder.append(a_record(round_))
    with (folder.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"round": 5, "acc')
    folder.cut_back(2)
    assert folder.records() == [a_record(1), a_record(2)]
    folder.append(a_record(3))
    assert [record.round for record in folder.records()] == [1, 2, 3]


# --- finding -------------------------------------------------------------------------------------------


def make_run(path: Path, **settings: Any) -> Path:
    path.mkdir(parents=True)
    (path / "experiment.toml").write_text(Experiment(**settings).toml(), encoding="utf-8")
    return path


def test_runs_and_folders_of_runs(tmp_path: Path) -> None:
    b, a = make_run(tmp_path / "sweep" / "b"), make_run(tmp_path / "sweep" / "a")
    alone = make_run(tmp_path / "alone")
    (tmp_path / "sweep" / "notes").mkdir()
    (tmp_path / "sweep" / "notes.txt").touch()
    assert [run.path for run in find_runs([alone, tmp_path / "sweep"])] == [alone, a, b]
    page = tmp_path / "report.html"  # as `runs/*` finds it
    page.touch()
    assert [run.path for run in find_runs([page, alone])] == [alone]


def test_runs_of_sweeps_inside_a_folder(tmp_path: Path) -> None:
    """As `vhl sweep` and `vhl run` leave them; nothing is looked for inside a run."""
    deep, flat = make_run(tmp_path / "runs" / "sweep" / "a"), make_run(tmp_path / "runs" / "alone")
    make_run(flat / "models")
    (tmp_path / "runs" / "sweep" / "back").symlink_to(tmp_path / "runs")
    (tmp_path / "runs" / "other").symlink_to(make_run(tmp_path / "elsewhere"))
    found = [run.path for run in find_runs([tmp_path / "runs"])]
    assert found == [flat, tmp_path / "runs" / "other", deep]


def test_runs_without_virtual_data_lead_their_folder(tmp_path: Path) -> None:
    """By name alone `naive` would be the baseline of `plain`; runs named one by one keep their order."""
    objectives = {"fedprox": "plain", "naive": "naive", "plain": "plain", "vhl": "vhl"}
    runs = {name: make_run(tmp_path / name, objective=kind) for name, kind in objectives.items()}
    assert [run.path.name for run in find_runs([tmp_path])] == ["fedprox", "plain", "naive", "vhl"]
    named = [runs["vhl"], runs["plain"]]
    assert [run.path for run in find_runs(named)] == named


def test_a_run_named_twice_is_one_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "a")
    assert len(find_runs([tmp_path / "runs", run, tmp_path / "runs" / ".." / "runs" / "a"])) == 1


@pytest.mark.parametrize("kind", ["missing", "empty", "file"])
def test_what_holds_no_run_is_named(tmp_path: Path, complains: Any, kind: str) -> None:
    path = tmp_path / kind
    if kind == "empty":
        path.mkdir()
    elif kind == "file":
        path.touch()
    with complains(path, "no run folder"):
        find_runs([path])


def test_an_experiment_that_cannot_be_read_is_named(tmp_path: Path, complains: Any) -> None:
    run = RunFolder(make_run(tmp_path / "run"))
    (run.path / "experiment.toml").write_text("rouns = 3\n", encoding="utf-8")
    with complains(run.path / "experiment.toml", "'rouns'", "'rounds'"):
        run.experiment()


def test_an_experiment_comes_back_equal(tmp_path: Path) -> None:
    experiment = Experiment(
        algorithm={"name": "fedprox", "mu": 0.3}, data={"mean": [0.5]}, clients_per_round=1.0
    )
    folder = RunFolder(tmp_path)
    folder.begin(experiment, {}, {})
    assert folder.experiment() == experiment
    assert isinstance(folder.experiment().clients_per_round, float)  # 1.0 is everyone, 1 is one client
