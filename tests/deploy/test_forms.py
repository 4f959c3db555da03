"""What is expected of an exchange is what a real client's training gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from vhl.rounds.problem import Problem

from vhl.algorithms.base import Server
from vhl.config.listing import available
from vhl.data.sources.base import Source
from vhl.deploy.forms import model_forms, server_forms, total_names, update_forms
from vhl.deploy.wire import flatten, form
from vhl.experiment import Experiment
from vhl.models.vectors import FlatModel
from vhl.training.task import Job, Outcome


@pytest.fixture
def make(small_digits: Callable[..., Source], data_dir: Path) -> Callable[..., Problem]:
    def problem(**settings: Any) -> Problem:
        experiment = Experiment(
            data=small_digits(validation=0.1),
            partition={"name": "iid", "clients": 4},
            device="cpu",
            **{
                "virtual": {"name": "noise", "per_class": 4},
                "model": {"name": "cnn", "width": 4},
                "training": {"batch_size": 8},
                **settings,
            },
        )
        return Problem(experiment, data_dir)

    return problem


def trained(problem: Problem) -> tuple[Outcome, Server]:
    """What really comes of a job, and the server it began from."""
    model = FlatModel(problem.initial(), problem.device, problem.precision.dtype)
    algorithm = problem.experiment.algorithm
    server = Server(model.parameters, model.buffers, algorithm.server_state(model.parameters))
    seen = Server(server.parameters, server.buffers, algorithm.sent(server.state))
    job = Job(1, 2, problem.parts[1], 0.01, algorithm.client_state(server))
    (outcome,) = problem.lanes().train(problem.task(), [job], seen)
    return outcome, seen


def check(problem: Problem) -> None:
    outcome, server = trained(problem)
    update = outcome.update
    vectors = {"parameters": update.parameters, "buffers": update.buffers}
    assert model_forms(problem) == {name: form(vector) for name, vector in vectors.items()}
    vectors |= {f"message.{name}": vector for name, vector in update.message.items()}
    assert update_forms(problem) == {name: form(vector) for name, vector in vectors.items()}
    assert server_forms(problem) == {name: form(vector) for name, vector in flatten(server).items()}
    assert total_names(problem.task(), problem.shape.outputs) == set(outcome.totals)


@pytest.mark.parametrize("objective", available("objectives"))
@pytest.mark.parametrize("algorithm", available("algorithms"))
def test_forms_are_those_of_a_clients_outcome(make, algorithm, objective):
    check(make(algorithm=algorithm, objective=objective))


@pytest.mark.parametrize(
    "settings",
    [
        {"engine": {"precision": "fp64"}},
        {"engine": {"precision": "bf16"}},
        {"training": {"batch_size": 1}},
        {"training": {"batch_size": 100, "keep_momentum": True}},
        {"model": {"name": "resnet8", "width": 4}},
        {"virtual": {"name": "noise", "per_class": 4, "classes": 7}},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("algorithm", "objective"), [("scaffold", "vhl"), ("moon", "naive"), ("feddyn", "vfa")]
)
def test_forms_hold_for_other_settings(make, algorithm, objective, settings):
    check(make(algorithm=algorithm, objective=objective, **settings))


def test_scaffold_says_one_vector_and_the_others_none(make):
    """By hand: which algorithms say something beside the model."""
    said = {
        algorithm: {n for n in update_forms(make(algorithm=algorithm, objective="plain")) if "." in n}
        for algorithm in available("algorithms")
    }
    assert {algorithm for algorithm, names in said.items() if names} == {"scaffold"}
    assert said["scaffold"] == {"message.control_change"}


def test_names_of_totals_by_hand(make):
    def names(algorithm: str, objective: str) -> set[str]:
        problem = make(algorithm=algorithm, objective=objective)
        return total_names(problem.task(), problem.shape.outputs)

    assert names("fedavg", "plain") == {"natural", "natural_hits"}
    assert names("moon", "plain") == {"natural", "contrast", "natural_hits"}
    assert names("fedavg", "vhl") == {"natural", "virtual", "calibration", "natural_hits", "virtual_hits"}


def test_looking_for_names_changes_no_chance(make):
    problem = make(objective="vfa", algorithm="moon")
    before = torch.random.get_rng_state()
    update_forms(problem), total_names(problem.task(), problem.shape.outputs)
    assert torch.random.get_rng_state().equal(before)
