from __future__ import annotations

from pathlib import Path

import pytest
import torch

from vhl.config.listing import available
from vhl.config.registry import build
from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.models.base import Model
from vhl.models.blueprint import Blueprint
from vhl.models.files import head_names

_OWN = """
from torch import nn

class Net(nn.Module):
    def __init__(self, classes, channels, size, depth=4):
        super().__init__()
        self.size = size
        self.body = nn.Sequential(nn.Conv2d(channels, depth, 3, padding=1), nn.BatchNorm2d(depth), nn.ReLU())
        self.out = nn.Linear(depth, classes)

    def forward(self, images):
        features = self.body(images).mean((2, 3))
        return {"last": features}, self.out(features)

def build(classes, channels, size, depth=4):
    return Net(classes, channels, size, depth)

class Wrong(Net):
    def __init__(self, classes, channels, size, kind="logits"):
        super().__init__(classes + (kind == "width"), channels, size)
        self.kind = kind

    def forward(self, images):
        features, logits = super().forward(images)
        return {"logits": logits, "tap": ({"end": logits}, logits), "width": (features, logits)}[self.kind]
"""


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    file = tmp_path / "my_net.py"
    file.write_text(_OWN)
    return file


def _probe(model):
    """What a network of one's own makes of a digit, of which there are ten."""
    return Blueprint(build(Model, "model", model), 10, 1, (8, 8), seed=0).known


@pytest.mark.parametrize("attribute", ["build", "Net"])
def test_a_factory_of_ones_own_gets_its_options(own_file, attribute):
    model = build(Model, "model", {"name": f"{own_file}:{attribute}", "depth": 7})
    network = model.build(5, 3, (8, 6))
    assert isinstance(model, Model)
    assert network.out.weight.shape == (5, 7) and network.body[0].weight.shape == (7, 3, 3, 3)
    assert network.size == (8, 6)
    assert build(Model, "model", f"{own_file}:{attribute}").build(5, 3, (8, 6)).out.in_features == 4


def test_a_factory_and_its_options_are_saved_and_read_again(own_file):
    experiment = Experiment(model={"name": f"{own_file}:build", "depth": 7, "start": "some.safetensors"})
    assert experiment.table()["model"] == {
        "name": f"{own_file}:build",
        "start": "some.safetensors",
        "depth": 7,
    }
    assert Experiment(**experiment.table()) == experiment
    assert experiment.with_(model={"depth": 3}).model.build(2, 1, (8, 8)).out.in_features == 3


@pytest.mark.parametrize(
    ("options", "complaint"),
    [({"dpeth": 7}, "unexpected keyword argument 'dpeth'"), ({"depth": 7, "more": 1}, "'more'")],
)
def test_options_that_a_factory_does_not_take_are_refused(own_file, options, complaint):
    with pytest.raises(VHLError, match=complaint) as caught:
        build(Model, "model", {"name": f"{own_file}:build", **options})
    assert str(caught.value).startswith(f"model = {own_file}:build: ")


def test_a_factory_that_needs_more_than_is_given_is_refused(tmp_path):
    (tmp_path / "needy.py").write_text("def build(classes, channels, size, depth): ...\n")
    with pytest.raises(VHLError, match="missing a required argument: 'depth'"):
        build(Model, "model", f"{tmp_path / 'needy.py'}:build")


@pytest.mark.parametrize("kind", ["logits", "tap", "width"])
def test_a_forward_that_returns_something_else_is_refused(own_file, kind):
    with pytest.raises(VHLError) as caught:
        _probe({"name": f"{own_file}:Wrong", "kind": kind})
    assert f"model {own_file}:Wrong: forward must return (features by tap, logits)" in str(caught.value)
    assert "10 logits" in str(caught.value)


def test_a_network_of_ones_own_is_measured(own_file):
    """8×8 pixels with 3×3 kernels to six channels, and their means to ten logits."""
    found = _probe({"name": f"{own_file}:build", "depth": 6})
    assert found.lengths == {"last": 6} and found.multiply_adds == 64 * 9 * 6 + 6 * 10


@pytest.mark.parametrize("name", sorted(available("models")))
def test_the_body_starts_alike_whatever_the_number_of_outputs(name):
    model = build(Model, "model", {"name": name, "width": 4})
    states = []
    for outputs in (10, 20):
        torch.manual_seed(5)
        states.append(model.build(outputs, 3, (8, 8)).state_dict())
    head = head_names(lambda outputs: model.build(outputs, 3, (8, 8)))
    assert set(head) == {"head.weight", "head.bias"}
    body = [key for key in states[0] if key not in head]
    assert all(torch.equal(states[0][key], states[1][key]) for key in body)
    assert states[1]["head.weight"].shape[0] == 20
