from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from vhl.rounds.simulation import Simulation

VIRTUAL = {"name": "noise", "per_class": 4, "classes": 3, "crop": 0, "flip": False}
Make = Callable[..., Simulation]


@pytest.fixture
def make(digit_simulation: Make) -> Make:
    def build(pretrain: Any = None, training: Any = None, **settings: Any) -> Simulation:
        defaults = {
            "partition": "iid:4",
            "virtual": VIRTUAL,
            "objective": {"name": "vftl", "pretrain": pretrain or {}},
            "training": {"batch_size": 12, "momentum": 0.0, "weight_decay": 0.01, **(training or {})},
            "clients_per_round": 2,
        }
        return digit_simulation(**{**defaults, **settings})

    return build


@pytest.mark.parametrize(
    ("pretrain", "epochs", "lr", "momentum", "classes"),
    [({}, 5, 0.01, 0.9, 3), ({"epochs": 2, "lr": 0.1, "momentum": 0.5}, 2, 0.1, 0.5, 4)],
)
def test_body_is_trained_on_the_virtual_classes_and_the_head_is_fresh(
    make: Make, torch_training: Any, pretrain: Any, epochs: int, lr: float, momentum: float, classes: int
) -> None:
    """In 64 bits. The twelve virtual images are one batch, so that an ordinary loop needs no order."""
    virtual = {**VIRTUAL, "classes": classes, "per_class": 12 // classes}
    simulation = make(pretrain, virtual=virtual, engine={"precision": "fp64"})
    setup, images = simulation.setup, simulation.setup.virtual.images
    pixels = torch.from_numpy((images.images.transpose(0, 3, 1, 2) / 255 - 0.5) / 0.25)
    plain, fresh = setup.blueprint.build(classes).double(), setup.blueprint.build().state_dict()
    sgd = torch.optim.SGD(plain.parameters(), lr, momentum, weight_decay=0.01)
    torch_training(plain, sgd, pixels, torch.from_numpy(images.labels), [np.arange(12)] * epochs)
    started = simulation.named_tensors()
    for name, tensor in plain.state_dict().items():
        if name in setup.blueprint.head:
            assert started[name].equal(fresh[name].double()) and len(started[name]) == 4
        else:
            torch.testing.assert_close(started[name], tensor, rtol=1e-9, atol=1e-11)
            assert not torch.allclose(started[name], fresh[name].double(), rtol=1e-4)


def test_pretraining_samples_count_in_the_first_round(make: Make) -> None:
    simulation = make({"epochs": 3})
    assert simulation.pretraining_samples == 36
    records = [simulation.run_round() for _ in range(2)]
    assert [record.samples for record in records] == [40 + 36, 40]  # two of four clients with 20 each
    assert records[0].virtual_accuracy is None


def test_pretraining_is_the_same_every_time(make: Make, assert_same_state: Any) -> None:
    virtual = {"name": "noise", "per_class": 10}
    assert_same_state(make(virtual=virtual), make(virtual=virtual))
    other = make(virtual=virtual, seeds={"batches": 1})
    assert not other.state.server.parameters.equal(make(virtual=virtual).state.server.parameters)


def test_a_state_to_continue_from_is_not_pretrained_again(make: Make, assert_same_state: Any) -> None:
    first = make()
    first.run_round()
    second = make(state=first.state)
    assert second.pretraining_samples == 0
    assert_same_state(second, first)


def test_the_layers_see_what_was_pretrained(make: Make) -> None:
    """They hold a shorter copy of the weights."""
    simulation = make({"lr": 0.1}, engine={"precision": "bf16"})
    fresh, module = simulation.setup.blueprint.build(), simulation.model.module
    seen, trained = module.stages[0][0].weight, simulation.named_tensors()["stages.0.0.weight"]
    assert seen.equal(trained.bfloat16()) and not seen.equal(fresh.stages[0][0].weight.bfloat16())


def test_statistics_that_stay_from_the_first_round_on_are_those_of_pretraining(make: Make) -> None:
    plain, frozen = (make(training={"freeze_batch_norm": after}) for after in (None, 0))
    buffers = frozen.state.server.buffers
    assert buffers.equal(plain.state.server.buffers)
    frozen.run_round()
    torch.testing.assert_close(frozen.state.server.buffers, buffers)
