from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from vhl.data.partitions.base import Partition
from vhl.models.base import Model
from vhl.objectives.vhl import VHL
from vhl.objectives.virtual_batch import VirtualBatch
from vhl.rounds.checks import notes


class _Flat(Model):
    """A network with PyTorch's own batch norm, which shows no map."""

    def build(self, classes: int, channels: int, size: tuple[int, int]) -> nn.Module:
        class Flat(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.norm = nn.BatchNorm2d(1)
                self.head = nn.Linear(size[0] * size[1], classes)

            def forward(self, images: torch.Tensor) -> Any:
                features = self.norm(images).flatten(1)
                return {"last": features}, self.head(features)

        return Flat()


class _Heavier(VHL):
    """An objective of one's own whose virtual images count for more."""

    def virtual_images(self, natural: int) -> VirtualBatch:
        return VirtualBatch(natural, share=0.7)


class _Returns(Model):
    """A network whose forward returns what a test says."""

    what: str

    def build(self, classes: int, channels: int, size: tuple[int, int]) -> nn.Module:
        what = self.what

        class Module(nn.Module):
            def forward(self, images: torch.Tensor) -> Any:
                logits = torch.zeros(len(images), classes + (what == "wide"))
                features = {"other" if what == "no tap" else "last": torch.zeros(len(images), 2)}
                return logits if what == "logits alone" else (features, logits)

        return Module()


@pytest.fixture
def refused(digit_simulation: Any, small_digits: Any) -> Any:
    def run(size: int = 16, **settings: Any) -> Any:
        return digit_simulation(data=small_digits(size=size), **settings)

    return run


RETURNS = "forward must return (features by tap, logits)"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"model": _Flat(), "objective": {"name": "vhl", "mosaic": 2}},
            ["shows its last map", "_Flat", "objective.mosaic=1, or take objective=vhl"],
        ),
        (
            {"model": _Flat(), "objective": {"name": "vhl-light", "mosaic": 1}},
            ["norm of", "PyTorch's own", "objective.batch_norm_share=unset"],
        ),
        ({"model": _Flat(), "objective": _Heavier()}, ["norm of", "PyTorch's own"]),
        ({"objective": {"name": "vhl-light", "tap": "stage2"}}, ["set objective.tap=last"]),
        (
            {"objective": {"name": "naive", "mosaic": 3}},
            ["must divide images of 16×16", "objective.mosaic=1"],
        ),
        ({"objective": {"name": "naive", "mosaic": 8}}, ["stage 3 is 4×4 for images of 16×16"]),
        ({"objective": "vhl-light", "size": 15}, ["must divide images of 15×15"]),
        (
            {"objective": "vhl-light", "size": 14},  # 14, 7, 4
            ["cnn's maps", "stage 2 is 7×7 for images of 14×14", "objective.mosaic=1"],
        ),
        ({"objective": {"name": "vhl-light", "virtual_batch": 30}}, ["30 virtual images", "mosaics of 4"]),
        ({"objective": {"name": "vhl", "tap": "deep"}}, ["'stage4'", "stage1, stage2, stage3, last"]),
        ({"model": _Returns(what="wide")}, [RETURNS]),
        ({"model": _Returns(what="no tap")}, [RETURNS]),
        ({"model": _Returns(what="logits alone")}, [RETURNS]),
    ],
    ids=str,
)
def test_what_cannot_be_is_said_before_training(
    settings: dict[str, Any], words: list[str], refused: Any, complains: Any
) -> None:
    with complains(*words):
        refused(**settings)


@pytest.fixture
def noted(digit_simulation: Any) -> Any:
    """The notes on an experiment."""

    def find(**settings: Any) -> list[str]:
        simulation = digit_simulation(**{"virtual": {"per_class": 4}, "partition": "iid:4", **settings})
        setup = simulation.setup
        return notes(setup.experiment, setup.data, setup.blueprint)

    return find


class _Half(Partition):
    def assign(self, dataset: Any, seed: int) -> list[np.ndarray]:
        return [np.flatnonzero(dataset.train.labels == label) for label in (0, 2)]


GROUP = {"name": "cnn", "width": 4, "norm": "group"}
LIGHT = {"name": "vhl-light", "virtual_batch": 8}
FREEZE = {"freeze_batch_norm": 1}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, None),
        ({"objective": "vhl"}, None),
        ({"virtual": {"name": "noise", "classes": 3}}, None),
        ({"objective": "vhl", "virtual": {"per_class": 5, "classes": 3}}, "3 virtual and 4 natural classes"),
        ({"partition": _Half()}, "No client holds a training image of class class 1, class 3"),
        ({"algorithm": "fednova", "training": {"keep_momentum": True}}, "keep_momentum"),
        ({"partition": "centralized"}, None),
        ({"partition": "centralized", "training": {"keep_momentum": False}}, "keep_momentum=true"),
        ({"rounds": 3, "training": {"freeze_batch_norm": 3}}, "training.freeze_batch_norm = 3 is never"),
        ({"rounds": 4, "training": {"freeze_batch_norm": 3}}, None),
        ({"rounds": 3, "training": {"lr_drops": [1, 3]}}, "lr_drops = 3 is never reached in 3 rounds"),
        ({"rounds": 4, "training": {"lr_drops": [1, 3]}}, None),
        ({"objective": LIGHT}, None),
        ({"objective": LIGHT, "model": GROUP}, "objective.batch_norm_share changes nothing"),
        ({"objective": "vhl", "model": GROUP}, None),
        ({"objective": LIGHT, "training": {"freeze_batch_norm": 0}}, "batch_norm_share changes nothing"),
        ({"objective": LIGHT, "training": FREEZE}, None),
        ({"objective": "vhl", "training": {"freeze_batch_norm": 0}}, None),
        ({"model": GROUP, "training": FREEZE}, "training.freeze_batch_norm changes nothing"),
        ({"training": FREEZE}, None),
        ({"objective": {**LIGHT, "mosaic_classes": "same"}, "virtual": {"per_class": 5}}, None),
        ({"objective": {"name": "vhl", "mosaic_classes": "same"}}, "set objective.mosaic"),
    ],
    ids=str,
)
def test_what_a_user_should_read(noted: Any, settings: dict[str, Any], said: str | None) -> None:
    found = noted(**settings)
    assert found == [] if said is None else len(found) == 1 and said in found[0]


@pytest.mark.parametrize(
    ("name", "pixels"), [("vhl", 1), ("vhl-light", 0), ("vhl-light", 1), ("vhl-light", 2)]
)
def test_a_crop_too_small_for_tiles_does_nothing_and_a_note_says_so(
    noted: Any, name: str, pixels: int
) -> None:
    found = noted(objective=name, virtual={"per_class": 4, "crop": pixels, "cutout": pixels})
    words = ["crop", "cutout"] if (name, pixels) == ("vhl-light", 1) else []
    assert [re.findall(r"^virtual\.(\w+) = 1 .*whole mosaic", note) for note in found] == [[w] for w in words]


def test_notes_on_the_data(noted: Any, array_source: Any, small_digits: Any) -> None:
    digits = small_digits().read(None, 0)
    (note,) = noted(data=array_source(digits.train, 4, sites=2))
    assert "2 sites" in note
    spelt = small_digits()
    spelt._dataset = replace(digits, classes=("Ill", "well", "ill", "WELL!"))
    assert noted(data=spelt) == ["Classes Ill, ill differ in capitals alone, and count as different."]
    remarked = small_digits()
    remarked._dataset = replace(digits, remarks=("Two files are no images.",))
    assert noted(data=remarked) == ["Two files are no images."]
