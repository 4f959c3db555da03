"""A network that can be built again and again; its checks are those of every run."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from vhl.models.base import Model
from vhl.models.blueprint import Blueprint, is_linear
from vhl.models.cnn import CNN
from vhl.models.resnet import ResNet8

DIGITS = Blueprint(CNN(width=4), 8, 1, (8, 8), seed=0)


def state(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def test_a_probe_by_hand():
    """8×8 digits through widths 4, 8 and 16, halved twice; eight outputs."""
    known = DIGITS.known
    assert known.lengths == {"stage1": 256, "stage2": 128, "stage3": 64, "last": 16}
    convolutions = 64 * 9 * 1 * 4 + 16 * 9 * 4 * 8 + 4 * 9 * 8 * 16
    assert known.multiply_adds == convolutions + 16 * 8
    assert DIGITS.probe(4).multiply_adds == convolutions + 16 * 4
    assert DIGITS.probe(4).logits.shape == (1, 4)


def test_weights_depend_on_the_seed_alone():
    torch.manual_seed(1)
    one = DIGITS.build()
    drawn = torch.rand(2)
    torch.manual_seed(1)
    assert torch.rand(2).equal(drawn)  # the caller's chance is left alone
    same, other = DIGITS.build(), replace(DIGITS, seed=1).build()
    assert all(a.equal(b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not one.head.weight.equal(other.head.weight)
    assert not one.stages[0][0].weight.equal(other.stages[0][0].weight)


@pytest.mark.parametrize("model", [CNN(width=4), ResNet8(width=4)])
def test_networks_of_other_outputs_share_the_body(model):
    wide = replace(DIGITS, model=model)
    narrow = replace(wide, outputs=4)
    assert wide.head == narrow.head == ("head.weight", "head.bias")
    one, other = state(wide.build()), state(narrow.build())
    assert one["head.weight"].shape[0] == 8 and other["head.weight"].shape[0] == 4
    assert all(one[name].equal(other[name]) for name in one if name not in wide.head)


def test_training_starts_from_saved_tensors(tmp_path):
    file = tmp_path / "start.safetensors"
    saved = {name: torch.rand_like(tensor) for name, tensor in DIGITS.build().state_dict().items()}
    save_file(saved, file)
    begun = replace(DIGITS, model=CNN(width=4, start=str(file)))
    loaded = state(begun.start())
    assert all(loaded[name].equal(saved[name]) for name in saved)
    assert begun.build().head.weight.equal(DIGITS.build().head.weight)  # the initial one is as ever


# --- the classifier ------------------------------------------------------------------------------------


class _Net(nn.Module):
    def __init__(self, inputs, classes, kind):
        super().__init__()
        self.kind, self.hidden = kind, nn.Linear(inputs, 7)
        self.head = nn.Linear(7 if kind == "hidden" else inputs, classes, bias=kind != "no bias")
        self.after = nn.BatchNorm1d(classes) if kind == "after" else nn.Identity()

    def forward(self, images):
        features = images.flatten(1)
        x = {"hidden": self.hidden, "cosine": lambda x: 10 * nn.functional.normalize(x)}.get(
            self.kind, nn.Identity()
        )(features)
        return {"last": features}, self.after(self.head(x))


class _Kind(Model):
    """A linear layer, and perhaps something that makes it no linear classifier of the features."""

    kind: str = ""

    def build(self, classes, channels, size):
        return _Net(channels * size[0] * size[1], classes, self.kind)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("cosine", "is none"),
        ("hidden", "is none"),
        ("after", "_Kind has "),
        ("no bias", "_Kind has head.weight."),
    ],
)
def test_a_classifier_that_is_not_linear_is_refused(complains, kind, words):
    with complains("linear classifier", words):
        replace(DIGITS, model=_Kind(kind=kind)).check_linear("This")


@pytest.mark.parametrize("model", [_Kind(), CNN(width=4), ResNet8(width=4)])
def test_a_linear_classifier_is_found(model):
    blueprint = replace(DIGITS, model=model)
    blueprint.check_linear("This")
    module = blueprint.build()
    weight, bias = blueprint.linear_head(module.state_dict())
    assert weight.equal(module.head.weight) and bias.equal(module.head.bias)


def test_what_is_linear():
    features, weight, bias = torch.rand(5, 3), torch.rand(4, 3), torch.rand(4)
    logits = features @ weight.T + bias
    assert is_linear(features, logits, (weight, bias))
    assert not is_linear(features, logits + 0.1, (weight, bias))
    assert not is_linear(features[:, :2], logits, (weight, bias))
    assert not is_linear(features[..., None], logits, (weight, bias))


# --- words for equal networks --------------------------------------------------------------------------


class _Seeded(Model):
    """What it computes is drawn with its weights, and no vector holds it."""

    def build(self, classes, channels, size):
        net = _Net(channels * size[0] * size[1], classes, "")
        net.register_buffer("order", torch.randperm(9))
        return net


def test_words_are_equal_for_networks_that_differ_in_loaded_weights_alone():
    assert DIGITS.identity() == replace(DIGITS, seed=1).identity()
    others = {"model": CNN(width=8)}, {"outputs": 4}, {"channels": 3}, {"size": (8, 12)}
    found = {replace(DIGITS, **other).identity() for other in others}
    assert len(found | {DIGITS.identity()}) == len(others) + 1
    assert DIGITS.identity(4) == replace(DIGITS, outputs=4).identity()
    seeded = replace(DIGITS, model=_Seeded())
    assert seeded.identity() == replace(seeded).identity() != replace(seeded, seed=1).identity()
