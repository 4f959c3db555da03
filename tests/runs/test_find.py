from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vhl.experiment import Experiment
from vhl.runs.find import find_runs


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
