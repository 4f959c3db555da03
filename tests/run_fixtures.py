"""A small experiment, and what every test about run folders asks of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vhl.experiment import Experiment
from vhl.runs.folder import RunFolder
from vhl.session.session import Session


@pytest.fixture
def slow_saving(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock of our own that stands still but while a checkpoint is written, which takes a second."""
    clock = [0.0]
    save = RunFolder.save_state

    def slow_save(folder: RunFolder, *what: Any) -> None:
        clock[0] += 1.0
        save(folder, *what)

    monkeypatch.setattr("vhl.session.session.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(RunFolder, "save_state", slow_save)
    return clock


@pytest.fixture(scope="session")
def experiment(data_dir: Path, write_digits: Callable[..., Path]) -> Experiment:
    """Everything a checkpoint must hold: control variates, momentum, participations, a best model.

    400 digits of 8×8 pixels and a network of a few thousand weights: a round takes hundredths of a second.
    """
    digits = write_digits(data_dir / "digits.npz", 400)
    return Experiment(
        name="tiny",
        data={"name": "npz", "path": str(digits), "validation": 0.2},
        partition={"name": "iid", "clients": 4},
        virtual={"name": "noise", "per_class": 4},
        model={"name": "cnn", "width": 8},
        objective={"name": "vhl", "virtual_batch": 16, "calibration": 0.1},
        algorithm="scaffold",
        training={"lr": 0.03, "batch_size": 16, "keep_momentum": True, "decay_per": "participation"},
        seeds={"model": 8},  # by which rounds 3 and 4 are each the best so far
        rounds=5,
        clients_per_round=2,
        keep_at=[2, 5],
        features_at=[3],
        checkpoint_every=2,
        device="cpu",
    )


@pytest.fixture(scope="session")
def run_in(data_dir: Path) -> Callable[..., Path]:
    """Run an experiment to its end under a folder; the run's folder."""

    def run(experiment: Experiment, runs: Path, **options: Any) -> Path:
        session = Session(experiment, runs, data_dir=data_dir, **options)
        for _ in session:
            pass
        return session.folder.path

    return run


@pytest.fixture(scope="session")
def finished(
    experiment: Experiment, run_in: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The experiment's run, never interrupted; not to be changed."""
    return run_in(experiment, tmp_path_factory.mktemp("finished"))


@pytest.fixture(scope="session")
def content() -> Callable[[Path], dict[str, Any]]:
    """All that a run folder holds, file by file: bytes, and records without wall times and neighbours."""

    def read(folder: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for file in sorted(f for f in folder.rglob("*") if f.is_file()):
            name = os.fspath(file.relative_to(folder))
            if name == "metrics.jsonl":
                lines = file.read_text(encoding="utf-8").splitlines()
                found[name] = [{**json.loads(line), "seconds": 0, "side_by_side": 1} for line in lines]
            elif name not in (".lock", "environment.json"):  # the one is empty, the other has a date
                found[name] = file.read_bytes()
        return found

    return read
