"""A small experiment, ways to run it that end well and badly, and what a tracker should have heard then."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.rounds.simulation import Simulation
from vhl.runs.folder import RunFolder
from vhl.runs.record import Record
from vhl.session.session import Session
from vhl.session.trackers.base import TRACKERS, named

ROUNDS = 5
CLASSES = ("cat", "dog/wolf", "naïve <b>", "3")
NAMES = (
    "accuracy",
    "natural_accuracy",
    "validation_accuracy",
    "train_accuracy",
    "virtual_accuracy",
    "drift",
    "learning_rate",
    "samples",
    "compute",
    "bytes",
    "seconds",
)
HOSTILE = [
    '<script>alert("it\'s")< & 100% [b] *.py #1?',
    "экспе́римент 😀 実験",
    "x" * 200,
]
"""Names of runs; a folder can have each of them."""


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No store, account or setting of the user's."""
    for variable in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_PROJECT", "WANDB_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    for folder in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"WANDB_{folder}_DIR", str(tmp_path / "user"))


@pytest.fixture(scope="session")
def experiment(data_dir: Path, write_digits: Callable[..., Path]) -> Experiment:
    """Five rounds of hundredths of a second; every second is evaluated and saved. Some settings are unset."""
    digits = write_digits(data_dir / "four-classes.npz", 160, n_class=4, classes=np.array(CLASSES))
    return Experiment(
        name="tiny",
        data={"name": "npz", "path": str(digits), "validation": 0.2},
        partition={"name": "iid", "clients": 3},
        virtual={"name": "noise", "per_class": 3},
        model={"name": "cnn", "width": 4},
        objective={"name": "vhl", "virtual_batch": 8},
        training={"batch_size": 16},
        rounds=ROUNDS,
        clients_per_round=2,
        evaluate_every=2,
        checkpoint_every=2,
        keep_at=[1, 5],
        device="cpu",
    )


class CrashError(Exception):
    """What nobody expects: nothing is saved when it comes."""


@pytest.fixture
def run_in(data_dir: Path, tmp_path: Path) -> Callable[..., RunFolder]:
    """Run under ``tmp_path / "runs"``; stop after a round, or crash when the one after it is computed."""

    def run(
        experiment: Experiment, *, stop: int | None = None, crash: int | None = None, **options: Any
    ) -> RunFolder:
        session = Session(experiment, tmp_path / "runs", data_dir=data_dir, **options)
        steps = iter(session)
        with pytest.MonkeyPatch.context() as patch:
            if crash is not None:
                patch.setattr(Simulation, "_land", _crashing_after(crash))
            try:
                for record in steps:
                    if record.round == stop:
                        break
            except CrashError:
                pass
            steps.close()
        return session.folder

    return run


def _crashing_after(round_: int) -> Callable[..., Any]:
    land = Simulation._land

    def crash(simulation: Simulation, *what: Any) -> Any:
        if simulation.state.round == round_:
            raise CrashError
        return land(simulation, *what)

    return crash


_KILLED = """
import json, os, sys
from pathlib import Path
from vhl.experiment import Experiment
from vhl.session.session import Session
from vhl.session.trackers.base import named
import vhl.cli.running
from vhl.session.trackers import mlflow, tensorboard, wandb

imported = [name for name in ("tensorboard", "mlflow", "wandb") if sys.modules.get(name)]
called = []

def listen(event, arguments):
    if event == "socket.connect":
        called.append(str(arguments[1]))
    if event == "socket.getaddrinfo":
        called.append(str(arguments[0]))

sys.addaudithook(listen)
file, runs, data_dir, *names = sys.argv[1:]
experiment = Experiment.read(Path(file))
for record in Session(experiment, Path(runs), data_dir=Path(data_dir), trackers=named(names)):
    if record.round == 3:
        print(json.dumps({"imported": imported, "called": called}), flush=True)
        os._exit(9)
"""


@dataclass(frozen=True)
class Killed:
    """A process that every installed tool followed, and that ended at once."""

    folder: Path
    """Its current folder and its home, with run folders in ``runs``; not to be changed."""
    imported: list[str]
    """Tools that were imported before any was asked for."""
    called: list[str]
    """Addresses that it called."""


@pytest.fixture(scope="session")
def killed_process(
    experiment: Experiment, data_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Killed:
    """It ended after round 3, of which no checkpoint tells.
    Nothing in its surroundings says that this is a test: some tools behave better in one.
    """
    folder = tmp_path_factory.mktemp("killed")
    (folder / "experiment.toml").write_text(experiment.toml(), encoding="utf-8")
    names = [name for name in TRACKERS if _is_installed(name)]
    command = [sys.executable, "-c", _KILLED, folder / "experiment.toml", folder / "runs", data_dir, *names]
    own = ("PYTEST", "CI", "MLFLOW", "WANDB", "DO_NOT_TRACK")
    surroundings = {key: value for key, value in os.environ.items() if not key.startswith(own)}
    surroundings |= {"WANDB_MODE": "offline", "HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, env=surroundings, cwd=folder)
    assert done.returncode == 9, done.stderr
    assert done.stderr == ""  # tools keep their chatter to themselves
    return Killed(folder, **json.loads(done.stdout))


def _is_installed(name: str) -> bool:
    try:
        named([name])
    except VHLError:
        return False
    return True


@pytest.fixture
def killed(killed_process: Killed, tmp_path: Path) -> RunFolder:
    """Its run, in ``tmp_path / "runs"``."""
    shutil.copytree(killed_process.folder / "runs", tmp_path / "runs", symlinks=True, dirs_exist_ok=True)
    run = RunFolder(tmp_path / "runs" / "tiny")
    assert len(run.records()) == 3
    return run


@pytest.fixture(scope="session")
def expected() -> Callable[[RunFolder], dict[str, dict[int, float]]]:
    """What a tool should hold of a run, by name and round, worked out from the lines of its folder."""

    def numbers(record: Record) -> Iterator[tuple[str, float | None]]:
        for name in NAMES:
            yield name, getattr(record, name)
        yield "left_out", len(record.left_out)
        for term, value in record.loss.items():
            yield f"loss/{term}", value
        for name, share in zip(
            ("cat", "dog_wolf", "naïve _b_", "3"), record.per_class or [None] * 4, strict=True
        ):
            yield f"per_class/{name}", share

    def read(run: RunFolder) -> dict[str, dict[int, float]]:
        found: dict[str, dict[int, float]] = {}
        for record in run.records():
            for name, value in numbers(record):
                if value is not None:
                    found.setdefault(name, {})[record.round] = value
        rounds = len(found["drift"])
        assert list(found["drift"]) == list(range(1, rounds + 1))
        assert len(found) >= (18 if rounds > 1 else 10)  # every second round is evaluated
        return found

    return read


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of MLflow's with its tables, which take it seconds to make."""
    from mlflow import MlflowClient

    from vhl.session.trackers.mlflow import MLflow, _store

    folder = tmp_path_factory.mktemp("mlflow")
    MLflow()  # for its settings of MLflow
    MlflowClient(_store(folder)).search_experiments()
    return folder / "mlflow.db"


@pytest.fixture
def mlflow_store(empty_store: Path, tmp_path: Path) -> Path:
    """The same beside the run folders, where the tracker would make it."""
    (tmp_path / "runs").mkdir()
    return shutil.copy(empty_store, tmp_path / "runs" / "mlflow.db")


@pytest.fixture(params=HOSTILE, ids=["marks", "letters", "length"])
def hostile(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name
