"""What is expected of an exchange is what a real client's training gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vhl.algorithms.base import Server, Vectors
from vhl.config.listing import available
from vhl.data.sources.base import Source
from vhl.deploy.forms import model_forms, server_forms, total_names, update_forms
from vhl.deploy.wire import flatten, form, prefixed
from vhl.experiment import Experiment
from vhl.rounds.clients import Order
from vhl.rounds.federation import Federation
from vhl.rounds.local import LocalClients, local


@pytest.fixture
def make(small_digits: Callable[..., Source], data_dir: Path) -> Callable[..., Federation]:
    """Four clients, and one in which all training images are."""

    def federation(clients: int = 4, **settings: Any) -> Federation:
        experiment = Experiment(
            data=small_digits(validation=0.1),
            partition={"name": "iid", "clients": clients},
            device="cpu",
            **{
                "virtual": {"name": "noise", "per_class": 4},
                "model": {"name": "cnn", "width": 4},
                "training": {"batch_size": 8},
                **settings,
            },
        )
        return local(experiment, data_dir)

    return federation


def forms(vectors: Vectors) -> dict[str, Any]:
    return {name: form(vector) for name, vector in vectors.items()}


def check(federation: Federation) -> None:
    """Against what really comes of one client's training."""
    setup, clients = federation.setup, federation.clients
    assert isinstance(clients, LocalClients)
    model, algorithm = setup.model(start=True), setup.experiment.algorithm
    state = algorithm.server_state(model.parameters)
    server = Server(model.parameters, model.buffers, algorithm.sent(state))
    own = algorithm.client_state(Server(server.parameters, server.buffers, state))
    outcome = clients.train_one(Order(0, 2, 0.01, own), server)
    update = outcome.update
    vectors = {"parameters": update.parameters, "buffers": update.buffers}
    assert model_forms(setup) == forms(vectors)
    assert update_forms(setup) == forms(vectors | prefixed("message.", update.message))
    assert server_forms(setup) == forms(flatten(server))
    assert total_names(setup) == set(outcome.totals)


@pytest.mark.parametrize("objective", available("objectives"))
@pytest.mark.parametrize("algorithm", available("algorithms"))
def test_forms_are_those_of_a_clients_outcome(make, algorithm, objective):
    check(make(1, algorithm=algorithm, objective=objective))


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
    check(make(1, algorithm=algorithm, objective=objective, **settings))


def test_scaffold_says_one_vector_and_the_others_none(make):
    """By hand: which algorithms say something beside the model."""
    for algorithm in available("algorithms"):
        found = set(update_forms(make(algorithm=algorithm, objective="plain").setup))
        more = {"message.control_change"} if algorithm == "scaffold" else set()
        assert found == {"parameters", "buffers"} | more


@pytest.mark.parametrize(
    ("algorithm", "objective", "names"),
    [
        ("fedavg", "plain", {"natural", "natural_hits"}),
        ("moon", "plain", {"natural", "contrast", "natural_hits"}),
        ("fedavg", "vhl", {"natural", "virtual", "calibration", "natural_hits", "virtual_hits"}),
    ],
)
def test_names_of_totals_by_hand(make, algorithm, objective, names):
    assert total_names(make(algorithm=algorithm, objective=objective).setup) == names


def test_looking_for_names_changes_no_chance(make):
    setup = make(objective="vfa", algorithm="moon").setup
    before = torch.random.get_rng_state()
    update_forms(setup), total_names(setup)
    assert torch.random.get_rng_state().equal(before)
