"""Read back with MLflow's own client."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from pathlib import Path

import pytest

from tracker_tools import MLflowTool

pytest.importorskip("mlflow", reason="the extra vhl[mlflow] is not installed")
pytest.importorskip("sqlalchemy", reason="the extra vhl[mlflow] is not installed")
pytest.importorskip("alembic", reason="the extra vhl[mlflow] is not installed")

from mlflow import MlflowClient

from vhl.experiment import Experiment
from vhl.session.session import Session
from vhl.session.trackers.base import parameters, remembered
from vhl.session.trackers.mlflow import MLflow, _store

TOOL = MLflowTool()


def artifact(runs: Path, identity: str, to: Path) -> Path:
    return Path(TOOL.client(runs).download_artifacts(identity, "experiment.toml", str(to)))


def test_without_a_database_one_is_made(killed_process):
    """Beside the run folders, with the artifacts, and nothing anywhere else."""
    runs = killed_process.folder / "runs"
    assert {path.name for path in runs.iterdir()} == {"tiny", "mlflow.db", "mlflow-artifacts"}
    assert not list(killed_process.folder.glob("mlruns*")) and not list(killed_process.folder.glob("*.db"))


def test_a_run_that_somebody_deleted_is_begun_anew(mlflow_store, experiment, run_in, expected):
    run = run_in(experiment, stop=2, trackers=[MLflow()])
    deleted = remembered(run, "mlflow")
    TOOL.client(mlflow_store.parent).delete_run(deleted)
    run_in(experiment, resume=True, trackers=[MLflow()])
    assert remembered(run, "mlflow") != deleted
    assert TOOL.numbers(run) == expected(run)


def test_another_store(empty_store, experiment, run_in, expected, tmp_path, monkeypatch):
    """Where the user says, under the user's name; it knows nothing of the run, and is told everything."""
    other = tmp_path / "other"
    other.mkdir()
    for folder in (tmp_path, other):
        shutil.copy(empty_store, folder / "mlflow.db")
    monkeypatch.chdir(other)  # where such a store puts artifacts
    monkeypatch.setenv("MLFLOW_TRACKING_URI", _store(tmp_path))
    run_in(experiment, stop=2, trackers=[MLflow()])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", _store(other))
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    run = run_in(experiment, resume=True, trackers=[MLflow()])
    assert [found.info.run_id for found in TOOL.runs_in(other, "mine")] == [remembered(run, "mlflow")]
    assert TOOL.numbers(run, other) == expected(run)
    assert not (tmp_path / "runs" / "mlflow.db").exists()


def test_the_experiment(mlflow_store, experiment, run_in, hostile, tmp_path):
    experiment = experiment.with_(name=hostile)
    run_in(experiment, stop=1, trackers=[MLflow()])
    (tracked,) = TOOL.runs_in(mlflow_store.parent)
    assert tracked.info.run_name == hostile
    assert tracked.data.params == {key: str(value) for key, value in parameters(experiment).items()}
    file = artifact(mlflow_store.parent, tracked.info.run_id, tmp_path)
    assert file.read_text(encoding="utf-8") == experiment.toml()
    assert (tmp_path / "runs" / "mlflow-artifacts" / tracked.info.run_id).is_dir()


def test_more_rounds_later_are_in_the_artifact(mlflow_store, experiment, run_in, tmp_path):
    """MLflow changes no parameter that is logged."""
    run_in(experiment.with_(rounds=2), trackers=[MLflow()])
    run = run_in(experiment, resume=True, trackers=[MLflow()])
    file = artifact(mlflow_store.parent, remembered(run, "mlflow"), tmp_path)
    assert Experiment.read(file) == experiment


@pytest.mark.parametrize("folder", ["a ? b#c", "100%20x"])
def test_an_odd_place(folder, empty_store, experiment, tmp_path, data_dir):
    (tmp_path / folder).mkdir()
    store = shutil.copy(empty_store, tmp_path / folder / "mlflow.db")
    notes: list[str] = []
    place = tmp_path / folder
    session = Session(experiment, place, data_dir=data_dir, trackers=[MLflow()], on_note=notes.append)
    assert len(list(session)) == 5 and notes == []
    with sqlite3.connect(store) as database:
        assert database.execute("SELECT count(*) FROM metrics WHERE key = 'drift'").fetchone() == (5,)


def test_more_numbers_than_a_server_of_mlflow_takes_at_once(mlflow_store, experiment, run_in, monkeypatch):
    """A data set of many classes. A store in a file takes any number."""
    run, tracker, sizes, log = run_in(experiment, stop=1), MLflow(), [], MlflowClient.log_batch

    def counting(self, run_id, metrics=(), params=(), **options):
        sizes.append((len(metrics), len(params)))
        return log(self, run_id, metrics=metrics, params=params, **options)

    monkeypatch.setattr(MlflowClient, "log_batch", counting)
    tracker.begin(run, experiment)
    many = {f"per_class/{number}": number / 2500 for number in range(2500)}
    tracker.log(1, many, time.time())
    assert TOOL.client(mlflow_store.parent).get_run(remembered(run, "mlflow")).data.metrics == many
    assert [metrics for metrics, _ in sizes if metrics] == [1000, 1000, 500]
    assert max(params for _, params in sizes) <= 100


def test_a_store_that_breaks(mlflow_store, experiment, data_dir):
    notes: list[str] = []
    place = mlflow_store.parent
    session = Session(experiment, place, data_dir=data_dir, trackers=[MLflow()], on_note=notes.append)
    for record in session:
        if record.round == 2:
            with sqlite3.connect(mlflow_store) as database:
                database.execute("DROP TABLE latest_metrics")
    assert len(session.folder.records()) == 5
    assert len(notes) == 1 and "MLflow" in notes[0] and "latest_metrics" in notes[0]


def test_a_server_that_is_not_there(experiment, run_in, monkeypatch):
    MLflow()
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "2"
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    notes: list[str] = []
    run = run_in(experiment, trackers=[MLflow()], on_note=notes.append)
    assert len(run.records()) == 5 and len(notes) == 1 and "127.0.0.1" in notes[0]
