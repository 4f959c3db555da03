from __future__ import annotations

from pathlib import Path
from typing import Any

from vhl.experiment import Experiment
from vhl.runs.folder import RunFolder


def test_an_experiment_that_cannot_be_read_is_named(tmp_path: Path, complains: Any) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text("rouns = 3\n", encoding="utf-8")
    with complains(file, "'rouns'", "'rounds'"):
        RunFolder(tmp_path).experiment()


def test_an_experiment_comes_back_equal(tmp_path: Path) -> None:
    experiment = Experiment(
        algorithm={"name": "fedprox", "mu": 0.3}, data={"mean": [0.5]}, clients_per_round=1.0
    )
    folder = RunFolder(tmp_path)
    folder.begin(experiment, {}, {})
    assert folder.experiment() == experiment
    assert isinstance(folder.experiment().clients_per_round, float)  # 1.0 is everyone, 1 is one client
