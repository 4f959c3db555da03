from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from vhl.rounds.problem import Problem

from vhl.experiment import Experiment

FOREIGN = """
from torch import nn

from vhl.models.base import Model
from vhl.objectives.vhl import VHL


class Flat(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.norm = nn.BatchNorm2d(1)
        self.head = nn.Linear(256, outputs)

    def forward(self, images):
        features = self.norm(images).flatten(1)
        return {"last": features}, self.head(features)


class Mine(Model):
    def build(self, classes, channels, size):
        return Flat(classes)


class Heavier(VHL):
    def statistics_weights(self, weights, virtual):
        return weights.new_ones(len(weights) + virtual)
"""


@pytest.fixture
def problem(tmp_path: Path) -> Any:
    (tmp_path / "mine.py").write_text(FOREIGN, encoding="utf-8")

    def make(**settings: Any) -> Problem:
        for key, word in (("model", "mine"), ("objective", "heavier")):
            if settings.get(key) == word:
                settings[key] = f"{tmp_path / 'mine.py'}:{word.title()}"
        usual = {"data": "digits", "model": {"name": "cnn", "width": 4}, "virtual": {"per_class": 4}}
        return Problem(Experiment.read({**usual, **settings}), tmp_path)

    return make


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"model": "mine", "objective": {"name": "vhl", "mosaic": 2}},
            ["shows its last map", "Mine", "objective.mosaic=1, or take objective=vhl"],
        ),
        (
            {"model": "mine", "objective": {"name": "vhl-light", "mosaic": 1}},
            ["norm of", "PyTorch's own", "objective.batch_norm_share=unset"],
        ),
        ({"model": "mine", "objective": "heavier"}, ["norm of", "PyTorch's own"]),
        ({"objective": {"name": "vhl-light", "tap": "stage2"}}, ["set objective.tap=last"]),
        (
            {"objective": {"name": "naive", "mosaic": 3}},
            ["must divide images of 16×16", "objective.mosaic=1"],
        ),
        ({"objective": {"name": "naive", "mosaic": 8}}, ["stage 3 is 4×4 for images of 16×16"]),
        ({"objective": "vhl-light", "data": {"name": "digits", "size": 15}}, ["must divide images of 15×15"]),
        (
            {"objective": "vhl-light", "data": {"name": "digits", "size": 14}},  # 14, 7, 4
            ["cnn's maps", "stage 2 is 7×7 for images of 14×14", "objective.mosaic=1"],
        ),
        ({"objective": {"name": "vhl-light", "virtual_batch": 30}}, ["30 virtual images", "mosaics of 4"]),
    ],
    ids=str,
)
def test_what_cannot_be_is_said_before_training(
    settings: dict[str, Any], words: list[str], problem: Any, complains: Any
) -> None:
    with complains(*words):
        problem(**settings)


def test_without_batch_norm_a_share_changes_nothing_and_a_note_says_so(problem: Any) -> None:
    model = {"name": "cnn", "width": 4, "norm": "group"}
    assert any(
        "batch_norm_share changes nothing" in n for n in problem(model=model, objective="vhl-light").notes()
    )
    for settings in ({"objective": "vhl-light"}, {"model": model, "objective": "vhl"}):
        assert not any("batch_norm_share" in note for note in problem(**settings).notes())


def test_with_statistics_fixed_from_the_start_a_share_changes_nothing_and_a_note_says_so(
    problem: Any,
) -> None:
    for name in ("vhl", "vhl-light"):
        for freeze in (0, 1):
            notes = problem(objective=name, training={"freeze_batch_norm": freeze}).notes()
            found = [note for note in notes if "objective.batch_norm_share changes nothing" in note]
            assert len(found) == (name == "vhl-light" and freeze == 0)


def test_a_crop_too_small_for_tiles_does_nothing_and_a_note_says_so(problem: Any) -> None:
    for name, pixels in (("vhl", 1), ("vhl-light", 0), ("vhl-light", 1), ("vhl-light", 2)):
        virtual = {"per_class": 4, "crop": pixels, "cutout": pixels}
        notes = [note for note in problem(objective=name, virtual=virtual).notes() if "whole mosaic" in note]
        expected = ["crop", "cutout"] if (name, pixels) == ("vhl-light", 1) else []
        assert [re.findall(r"^virtual\.(\w+) = 1 ", note) for note in notes] == [[word] for word in expected]


def test_without_batch_norm_there_is_nothing_to_freeze_and_a_note_says_so(problem: Any) -> None:
    for norm in ("group", "batch"):
        model = {"name": "cnn", "width": 4, "norm": norm}
        notes = problem(model=model, objective="plain", training={"freeze_batch_norm": 3}).notes()
        found = [note for note in notes if "training.freeze_batch_norm changes nothing" in note]
        assert len(found) == (norm == "group")


def test_without_mosaics_there_are_no_classes_of_tiles_and_a_note_says_so(problem: Any) -> None:
    for name in ("vhl", "vhl-light"):
        notes = problem(objective={"name": name, "mosaic_classes": "same"}).notes()
        assert len([note for note in notes if "set objective.mosaic" in note]) == (name == "vhl")
