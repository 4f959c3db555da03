"""Read back with MLflow's own client."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mlflow", reason="the extra vhl[mlflow] is not installed")
pytest.importorskip("sqlalchemy", reason="the extra vhl[mlflow] is not installed")
pytest.importorskip("alembic", reason="the extra vhl[mlflow] is not installed")

from mlflow import MlflowClient

from vhl.experiment import Experiment
from vhl.runs.folder import RunFolder
from vhl.session.trackers.base import parameters, remembered
from vhl.session.trackers.mlflow import MLflow, _store

Run = Callable[..., RunFolder]
Numbers = dict[str, dict[int, float]]
Expected = Callable[[RunFolder], Numbers]


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with its tables, which take MLflow seconds to make."""
    folder = tmp_path_factory.mktemp("mlflow")
    MLflow()  # for its settings of MLflow
    MlflowClient(_store(folder)).search_experiments()
    return folder / "mlflow.db"


@pytest.fixture
def store(empty_store: Path, tmp_path: Path) -> Path:
    """The same beside the run folders, where the tracker would make it."""
    (tmp_path / "runs").mkdir()
    return shutil.copy(empty_store, tmp_path / "runs" / "mlflow.db")


def client(store: Path) -> MlflowClient:
    return MlflowClient(_store(store.parent))


def runs_in(store: Path, group: str = "vhl") -> list[Any]:
    found = client(store).get_experiment_by_name(group)
    assert found is not None
    return list(client(store).search_runs([found.experiment_id]))


def numbers(store: Path, identity: str) -> Numbers:
    found = {}
    for name in client(store).get_run(identity).data.metrics:
        history = client(store).get_metric_history(identity, name)
        assert len({metric.step for metric in history}) == len(history), "a round appears twice"
        found[name] = {metric.step: metric.value for metric in history}
    return found


def identity_of(run: RunFolder) -> str:
    found = remembered(run, "mlflow")
    assert found is not None
    return found


def test_every_number_of_every_round(
    store: Path, experiment: Experiment, run_in: Run, expected: Expected
) -> None:
    run = run_in(experiment, trackers=[MLflow()])
    (tracked,) = runs_in(store)
    assert tracked.info.run_id == identity_of(run)
    assert numbers(store, tracked.info.run_id) == expected(run)
    assert tracked.info.status == "FINISHED"


def test_without_a_database_one_is_made(killed_process: Any) -> None:
    """Beside the run folders, with the artifacts, and nothing anywhere else."""
    runs = killed_process.folder / "runs"
    assert {path.name for path in runs.iterdir()} == {"tiny", "mlflow.db", "mlflow-artifacts"}
    assert not list(killed_process.folder.glob("mlruns*")) and not list(killed_process.folder.glob("*.db"))


@pytest.mark.parametrize("how", [{"stop": 3}, {"crash": 3}], ids=str)
def test_a_run_that_is_continued(
    how: dict[str, int], store: Path, experiment: Experiment, run_in: Run, expected: Expected
) -> None:
    run = run_in(experiment, trackers=[MLflow()], **how)
    identity, before = identity_of(run), expected(run)
    assert client(store).get_run(identity).info.status == "KILLED"
    run_in(experiment, resume=True, trackers=[MLflow()])
    (tracked,) = runs_in(store)
    assert (tracked.info.run_id, tracked.info.status) == (identity, "FINISHED")
    found, wanted = numbers(store, identity), expected(run)
    # A round that was computed twice took two times; MLflow holds the first.
    wanted["seconds"] |= before["seconds"]
    assert found == wanted


def test_a_run_that_is_killed(
    killed: RunFolder, experiment: Experiment, run_in: Run, expected: Expected
) -> None:
    store, before = killed.path.parent / "mlflow.db", expected(killed)["seconds"]
    assert numbers(store, identity_of(killed)) == expected(killed)
    run_in(experiment, resume=True, trackers=[MLflow()])
    (tracked,) = runs_in(store)
    wanted = expected(killed)
    wanted["seconds"] |= before
    assert numbers(store, tracked.info.run_id) == wanted


def test_more_rounds_later(
    store: Path, experiment: Experiment, run_in: Run, expected: Expected, tmp_path: Path
) -> None:
    run = run_in(experiment.with_(rounds=2), trackers=[MLflow()])
    run_in(experiment, resume=True, trackers=[MLflow()])
    assert numbers(store, identity_of(run)) == expected(run)
    file = client(store).download_artifacts(identity_of(run), "experiment.toml", str(tmp_path))
    assert Experiment.read(Path(file)) == experiment


def test_a_finished_run_can_be_brought_in(
    store: Path, experiment: Experiment, run_in: Run, expected: Expected
) -> None:
    run_in(experiment)
    run = run_in(experiment, resume=True, trackers=[MLflow()])
    assert numbers(store, identity_of(run)) == expected(run)


def test_a_run_that_somebody_deleted_is_begun_anew(
    store: Path, experiment: Experiment, run_in: Run, expected: Expected
) -> None:
    run = run_in(experiment, stop=2, trackers=[MLflow()])
    client(store).delete_run(deleted := identity_of(run))
    run_in(experiment, resume=True, trackers=[MLflow()])
    assert identity_of(run) != deleted
    assert numbers(store, identity_of(run)) == expected(run)


def test_another_store(
    empty_store: Path,
    experiment: Experiment,
    run_in: Run,
    expected: Expected,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the user says, under the user's name; it knows nothing of the run, and is told everything."""
    (tmp_path / "other").mkdir()
    other = Path(shutil.copy(empty_store, tmp_path / "other" / "mlflow.db"))
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    monkeypatch.chdir(tmp_path / "other")  # where such a store puts artifacts
    monkeypatch.setenv("MLFLOW_TRACKING_URI", _store(tmp_path))
    run_in(experiment, stop=2, trackers=[MLflow()])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", _store(other.parent))
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    run = run_in(experiment, resume=True, trackers=[MLflow()])
    (tracked,) = runs_in(other, "mine")
    assert numbers(other, tracked.info.run_id) == expected(run)
    assert not (tmp_path / "runs" / "mlflow.db").exists()


def test_the_experiment(
    store: Path, experiment: Experiment, run_in: Run, hostile: str, tmp_path: Path
) -> None:
    experiment = experiment.with_(name=hostile)
    run_in(experiment, stop=1, trackers=[MLflow()])
    (tracked,) = runs_in(store)
    assert tracked.info.run_name == hostile
    assert tracked.data.params == {key: str(value) for key, value in parameters(experiment).items()}
    file = client(store).download_artifacts(tracked.info.run_id, "experiment.toml", str(tmp_path))
    assert Path(file).read_text(encoding="utf-8") == experiment.toml()
    assert (tmp_path / "runs" / "mlflow-artifacts" / tracked.info.run_id).is_dir()


@pytest.mark.parametrize("folder", ["a ? b#c", "100%20x"])
def test_an_odd_place(
    folder: str, empty_store: Path, experiment: Experiment, run_in: Run, tmp_path: Path, data_dir: Path
) -> None:
    from vhl.session.session import Session

    (tmp_path / folder).mkdir()
    store = Path(shutil.copy(empty_store, tmp_path / folder / "mlflow.db"))
    notes: list[str] = []
    session = Session(
        experiment, tmp_path / folder, data_dir=data_dir, trackers=[MLflow()], on_note=notes.append
    )
    assert len(list(session)) == 5 and notes == []
    with sqlite3.connect(store) as database:
        assert database.execute("SELECT count(*) FROM metrics WHERE key = 'drift'").fetchone() == (5,)


def test_more_numbers_than_mlflow_takes_at_once(store: Path, experiment: Experiment, run_in: Run) -> None:
    """A data set of many classes; and numbers that are none."""
    run = run_in(experiment, stop=1)
    tracker = MLflow()
    tracker.begin(run, experiment)
    many = {f"per_class/{number}": number / 2500 for number in range(2500)}
    tracker.log(1, {**many, "inf": float("inf"), "nan": float("nan")}, time.time())
    found = client(store).get_run(identity_of(run)).data.metrics
    assert {name: found[name] for name in many} == many and len(found) == 2502
    assert np.isnan(found["nan"]) and found["inf"] > 1e308


def test_a_store_that_breaks(store: Path, experiment: Experiment, run_in: Run, data_dir: Path) -> None:
    from vhl.session.session import Session

    notes: list[str] = []
    session = Session(experiment, store.parent, data_dir=data_dir, trackers=[MLflow()], on_note=notes.append)
    for record in session:
        if record.round == 2:
            with sqlite3.connect(store) as database:
                database.execute("DROP TABLE latest_metrics")
    assert len(session.folder.records()) == 5
    assert len(notes) == 1 and "MLflow" in notes[0] and "latest_metrics" in notes[0]


def test_a_server_that_is_not_there(
    experiment: Experiment, run_in: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "2"
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    notes: list[str] = []
    run = run_in(experiment, trackers=[MLflow()], on_note=notes.append)
    assert len(run.records()) == 5 and len(notes) == 1 and "127.0.0.1" in notes[0]
