"""Runs with parts from files of one's own: the files may change, and the run be read from elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.runs.folder import RunFolder
from vhl.runs.origin import Origin
from vhl.runs.resume import check_same

SOURCE = """
from pydantic import Field
from vhl.algorithms.fedavg import FedAvg

class Mine(FedAvg):
    bound: float = Field(gt=0, description="largest")
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run that was begun in ``tmp_path`` with ``parts/mine.py:Mine``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "mine.py").write_text(SOURCE)
    folder = RunFolder(tmp_path / "runs" / "mine")
    folder.begin(experiment(), {}, {})
    return folder


def experiment() -> Experiment:
    return Experiment(algorithm={"name": "parts/mine.py:Mine", "bound": 2})


def test_a_run_is_read_from_any_folder(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    found = run.experiment()
    assert found.algorithm.name == "parts/mine.py:Mine"
    assert found.with_(rounds=3).rounds == 3  # which makes its parts anew
    check_same(run, found)


def test_a_file_that_changed_is_another_method(run: RunFolder, tmp_path: Path) -> None:
    check_same(run, experiment())
    (tmp_path / "parts" / "mine.py").write_text(SOURCE + "\n# another\n")
    with pytest.raises(VHLError, match=r"parts/mine.py has changed since .*mine was begun; put it back, or"):
        check_same(run, experiment())


def test_without_files_of_ones_own_nothing_is_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.begin(Experiment(), {}, {})
    assert not (folder.path / "origin.json").exists()
    assert Origin.of(Experiment()).files == {}
