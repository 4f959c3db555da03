from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from vhl.training.stream import Stream

from vhl.algorithms.base import Server
from vhl.data.images import ImageSet, ImageStream
from vhl.models.vectors import FlatModel
from vhl.rounds import evaluation
from vhl.rounds.evaluation import Evaluator, look
from vhl.training.precision import Precision


class _Echo(nn.Module):
    """An image's pixels are its logits; dropout shows whether the mode is right."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.dropout = nn.Dropout(0.9)

    def forward(self, images):
        pixels = images.flatten(1)
        return {"last": 10 * pixels, "first": pixels}, self.dropout(pixels) * self.scale


@pytest.fixture
def model():
    return FlatModel(_Echo(), torch.device("cpu"))


def stream(logits, labels):
    images = ImageSet(np.asarray(logits, np.uint8)[:, None, :, None], np.asarray(labels))
    return Stream(
        images, ImageStream(crop=2), (np.zeros(1), np.full(1, 1 / 255)), torch.device("cpu"), augment=False
    )


NUMERICS = Precision(torch.device("cpu"), "fp32")


def evaluate(model, stream, classes):
    evaluator = Evaluator(model, NUMERICS, {"test": stream}, classes, capture=False)
    fetched = evaluator.start(Server(model.parameters.clone(), model.buffers.clone()))
    assert fetched.ready
    return Evaluator.read(fetched.get(), "test")


LOGITS = [
    [9, 1, 2, 0, 0],  # class 0, right
    [5, 1, 2, 8, 0],  # class 0: virtual output 3 wins, natural output 0 is right
    [1, 5, 2, 8, 0],  # class 0: virtual output 3 wins, natural output 1
    [1, 9, 2, 8, 0],  # class 1, right
    [7, 6, 2, 0, 9],  # class 1: virtual output 4 wins, natural output 0
]
LABELS = [0, 0, 0, 1, 1]


@pytest.mark.parametrize("batch", [500, 2])
def test_accuracies_by_hand(model, monkeypatch, batch):
    monkeypatch.setattr(evaluation, "_BATCH", batch)
    found = evaluate(model, stream(LOGITS, LABELS), 3)
    assert found.confusion.tolist() == [[1, 0, 0, 2, 0], [0, 1, 0, 0, 1], [0, 0, 0, 0, 0]]
    assert found.natural_confusion.tolist() == [[2, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert found.accuracy == 2 / 5  # exactly: a target of 0.4 is reached
    assert found.natural_accuracy == 3 / 5
    assert found.per_class == [1 / 3, 1 / 2, None]


def test_without_virtual_outputs_both_accuracies_agree(model):
    found = evaluate(model, stream([row[:3] for row in LOGITS], LABELS), 3)
    assert found.accuracy == found.natural_accuracy == 3 / 5
    assert found.confusion.equal(found.natural_confusion)


@pytest.mark.parametrize("batch", [500, 2])
def test_look_returns_chosen_samples(model, monkeypatch, batch):
    monkeypatch.setattr(evaluation, "_BATCH", batch)
    model.module.train()
    found = look(model, stream(LOGITS, LABELS), torch.tensor([4, 0, 3]), NUMERICS)
    assert found["logits"].tolist() == [LOGITS[4], LOGITS[0], LOGITS[3]]
    assert found["features"].tolist() == [[10 * x for x in LOGITS[n]] for n in (4, 0, 3)]
    assert found["labels"].tolist() == [1, 0, 1]
