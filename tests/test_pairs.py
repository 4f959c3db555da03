"""Any algorithm learns with any objective: the promise that VHL is orthogonal to the algorithm."""

from __future__ import annotations

import pytest

from vhl import Experiment, simulate
from vhl.config.listing import available

OPTIONS = {
    # The default rate is for longer runs: it moves every weight by 0.1 in the first round.
    "fedadagrad": {"algorithm": {"name": "fedadagrad", "server_lr": 0.01}},
    # Teachers are looked at with running statistics, which take some steps to become their own.
    "feddf": {
        "data": {"name": "digits", "validation": 0.1},
        "algorithm": {"name": "feddf", "images": "dataset:digits", "steps": 50, "check_every": 50},
        "training": {"batch_size": 8, "lr": 0.02, "epochs": 2},
    },
}
"""What an algorithm needs to learn so fast, or at all."""
PAIRS = [(a, o) for a in sorted(available("algorithms")) for o in sorted(available("objectives"))]


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "objective"), PAIRS)
def test_seventy_percent_on_iid_digits_within_twenty_rounds(algorithm: str, objective: str) -> None:
    settings = {
        "data": "digits",
        "partition": "iid",
        "algorithm": algorithm,
        "objective": objective,
        "virtual": {"name": "noise", "per_class": 200, "flip": False},
        "training": {"batch_size": 32, "lr": 0.05, "epochs": 2},
        "rounds": 20,
    }
    experiment = Experiment(**{**settings, **OPTIONS.get(algorithm, {})})
    accuracies = []
    for record in simulate(experiment):
        accuracies.append(record.accuracy or 0.0)
        if accuracies[-1] >= 0.7:
            return
    pytest.fail(f"best of 20 rounds: {max(accuracies):.1%}")
