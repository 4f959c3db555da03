from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from vhl.algorithms.base import Server
from vhl.data.images import ImageSet, ImageStream
from vhl.models.vectors import FlatModel
from vhl.rounds.evaluation import Evaluation, Evaluator
from vhl.rounds.looking import look, moments
from vhl.training.precision import Precision
from vhl.training.streams import Stream


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


PRECISION = Precision(torch.device("cpu"), "fp32")


def evaluate(model, stream, classes):
    evaluator = Evaluator(model, PRECISION, {"test": stream}, classes)
    pending = evaluator.start(Server(model.parameters.clone(), model.buffers.clone()))
    assert pending.ready and Evaluation.read(pending.get(), "validation") is None
    return Evaluation.read(pending.get(), "test")


LOGITS = [
    [9, 1, 2, 0, 0],  # class 0, right
    [5, 1, 2, 8, 0],  # class 0: virtual output 3 wins, natural output 0 is right
    [1, 5, 2, 8, 0],  # class 0: virtual output 3 wins, natural output 1
    [1, 9, 2, 8, 0],  # class 1, right
    [7, 6, 2, 0, 9],  # class 1: virtual output 4 wins, natural output 0
]
LABELS = [0, 0, 0, 1, 1]


@pytest.mark.parametrize("times", [1, 333])
def test_accuracies_by_hand(model, times):
    """In one batch, or in several of which the last is not whole."""
    found = evaluate(model, stream(LOGITS * times, LABELS * times), 3)
    assert (found.confusion // times).tolist() == [[1, 0, 0, 2, 0], [0, 1, 0, 0, 1], [0, 0, 0, 0, 0]]
    assert (found.natural_confusion // times).tolist() == [[2, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert found.confusion.sum() == found.natural_confusion.sum() == 5 * times
    assert found.accuracy == 2 / 5  # exactly: a target of 0.4 is reached
    assert found.natural_accuracy == 3 / 5
    assert found.per_class == [1 / 3, 1 / 2, None]


def test_an_evaluation_is_of_the_server_it_is_started_with(model):
    """Of another model in the same place before; what was counted then stays."""
    evaluator = Evaluator(model, PRECISION, {"test": stream(LOGITS, LABELS)}, 3)
    parameters, buffers = model.parameters.clone(), model.buffers.clone()
    first = evaluator.start(Server(-parameters, buffers))
    second = evaluator.start(Server(parameters, buffers))
    assert Evaluation.read(second.get(), "test").accuracy == 2 / 5
    assert Evaluation.read(first.get(), "test").accuracy == 0


def test_without_virtual_outputs_both_accuracies_agree(model):
    found = evaluate(model, stream([row[:3] for row in LOGITS], LABELS), 3)
    assert found.accuracy == found.natural_accuracy == 3 / 5
    assert found.confusion.equal(found.natural_confusion)


@pytest.mark.parametrize("times", [1, 333])
def test_look_returns_chosen_samples(model, times):
    model.module.train()
    index = torch.tensor([4, 0, 3] * times)
    found = look(model, stream(LOGITS, LABELS), index, PRECISION)
    assert found["logits"].tolist() == [LOGITS[4], LOGITS[0], LOGITS[3]] * times
    assert found["features"].tolist() == [[10 * x for x in LOGITS[n]] for n in (4, 0, 3)] * times
    assert found["labels"].tolist() == [1, 0, 1] * times


def test_moments_of_chosen_samples_by_numpy(model):
    """Features are ten times the pixels; of class 2 there are none."""
    index = [0, 1, 3]
    found = moments(model, stream(LOGITS, LABELS), torch.tensor(index), 3, PRECISION)
    features, labels = 10.0 * np.array(LOGITS)[index], np.array(LABELS)[index]
    assert found["counts"].tolist() == [2, 1, 0]
    for label in range(3):
        own = features[labels == label]
        np.testing.assert_array_equal(found["sums"][label], own.sum(0))
        np.testing.assert_array_equal(found["products"][label], own.T @ own)
