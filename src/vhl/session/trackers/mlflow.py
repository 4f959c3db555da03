"""MLflow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from vhl.experiment import Experiment
from vhl.runs.folder import RunFolder
from vhl.session.trackers.base import Tracker, need, parameters, remember, remembered

_AT_ONCE = {"metrics": 1000, "params": 100}
"""MLflow takes no more in one call."""


class MLflow(Tracker):
    """A run in ``mlflow.db`` beside the run folders, or in the store that MLFLOW_TRACKING_URI names.

    ``mlflow ui --backend-store-uri sqlite:///runs/mlflow.db`` shows it; for that the package ``mlflow`` is
    needed as a whole, not only the part of it that writes. MLflow changes no parameter that is logged: where
    a run got more rounds later, its artifact ``experiment.toml`` says so.
    """

    def __init__(self) -> None:
        need("mlflow", "mlflow", "sqlalchemy", "alembic")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        # A server that is gone must not hold up training; MLflow would try for four minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")

    def begin(self, run: RunFolder, experiment: Experiment) -> int:
        from mlflow import MlflowClient

        beside = run.path.resolve().parent
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or _store(beside))
        self._run = self._found(remembered(run, "mlflow")) or self._created(experiment, beside)
        remember(run, "mlflow", self._run)
        self._client.update_run(self._run, status="RUNNING")
        self._client.log_text(self._run, experiment.toml(), "experiment.toml")
        return max((one.step for one in self._client.get_metric_history(self._run, "samples")), default=0)

    def log(self, round_: int, metrics: Mapping[str, float], when: float) -> None:
        from mlflow.entities import Metric

        found = [Metric(name, value, int(1000 * when), round_) for name, value in metrics.items()]
        for start in range(0, len(found), _AT_ONCE["metrics"]):
            self._client.log_batch(self._run, metrics=found[start : start + _AT_ONCE["metrics"]])

    def end(self, finished: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")

    def _found(self, identity: str | None) -> str | None:
        """The run that was begun earlier, if this store has it and nobody has deleted it."""
        from mlflow.exceptions import MlflowException

        if identity is None:
            return None
        try:
            is_there = self._client.get_run(identity).info.lifecycle_stage == "active"
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            is_there = False
        return identity if is_there else None

    def _created(self, experiment: Experiment, beside: Path) -> str:
        from mlflow.entities import Param

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "vhl"
        known = self._client.get_experiment_by_name(name)
        if known is not None:
            group = known.experiment_id
        else:
            is_elsewhere = bool(os.environ.get("MLFLOW_TRACKING_URI"))
            place = None if is_elsewhere else (beside / "mlflow-artifacts").as_uri()
            group = self._client.create_experiment(name, artifact_location=place)
        identity: str = self._client.create_run(group, run_name=experiment.name).info.run_id
        settings = [Param(key, str(value)) for key, value in parameters(experiment).items()]
        for start in range(0, len(settings), _AT_ONCE["params"]):
            self._client.log_batch(identity, params=settings[start : start + _AT_ONCE["params"]])
        return identity


def _store(folder: Path) -> str:
    from sqlalchemy import URL

    return str(URL.create("sqlite", database=str(folder / "mlflow.db")).render_as_string())
