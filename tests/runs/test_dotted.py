from __future__ import annotations

from vhl.experiment import Experiment
from vhl.runs.dotted import dotted


def test_keys_are_those_of_the_command_line() -> None:
    found = dotted(Experiment(algorithm={"name": "fedprox", "mu": 0.3}, keep_at=[1, 2]))
    assert found["algorithm.name"] == "fedprox" and found["algorithm.mu"] == 0.3
    assert found["training.lr"] == 0.01 and found["keep_at"] == [1, 2]
    assert found["objective.distance.temperature"] == 0.07
    assert "data.mean" in found and found["data.mean"] is None


def test_what_is_no_default_alone() -> None:
    experiment = Experiment(data="digits", objective={"name": "vhl", "calibration": 0.5})
    found = dotted(experiment, defaults=False)
    assert found["objective.calibration"] == 0.5 and found["objective.name"] == "vhl"
    assert "training.lr" not in found and "objective.tap" not in found
