from __future__ import annotations

import pytest

from vhl.objectives.base import Pretraining
from vhl.objectives.vftl import VFTL


def test_after_pretraining_it_is_plain(make_batch, cross_entropy):
    batch = make_batch(outputs=4)
    terms = VFTL().loss(batch)
    expected = cross_entropy(batch.logits, batch.labels, batch.weights)
    assert {name: term.item() for name, term in terms.items()} == {"natural": pytest.approx(expected)}


def test_its_stage_takes_the_settings_given():
    objective = VFTL(pretrain={"epochs": 2, "lr": 0.5, "momentum": 0})
    assert objective.pretraining == Pretraining(epochs=2, lr=0.5, momentum=0)
