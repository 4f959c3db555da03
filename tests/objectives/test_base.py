from __future__ import annotations

import pytest
import torch

from vhl.errors import VHLError
from vhl.objectives.base import Batch, Pretraining, weighted_mean
from vhl.objectives.naive import Naive
from vhl.objectives.plain import Plain
from vhl.objectives.vfa import VFA
from vhl.objectives.vftl import VFTL
from vhl.objectives.vhl import VHL
from vhl.objectives.virtual_batch import VirtualBatch


def test_the_weighted_mean_divides_by_the_weights():
    values, weights = torch.tensor([2.0, 4.0, 100.0]), torch.tensor([1.0, 1.0, 0.0])
    assert weighted_mean(values, weights).item() == 3


@pytest.mark.parametrize(
    ("objective", "virtual_classes", "outputs", "targets", "rows", "uses_virtual"),
    [
        (Plain(), 7, 10, [0, 2], 0, False),
        (VFA(), 7, 10, [0, 2], 0, False),
        (VFTL(), 7, 10, [0, 2], 0, True),
        (Naive(), 7, 17, [10, 12], 128, True),
        (Naive(virtual_batch=5), 12, 22, [10, 12], 5, True),
        (VHL(), 10, 20, [10, 12], 128, True),
        (VHL(virtual_batch=32), 7, 17, [10, 12], 32, True),
        (VHL(shared_labels=True), 10, 10, [0, 2], 128, True),
        (VHL(shared_labels=True), 7, 10, [0, 2], 128, True),
        (VHL(shared_labels=True), 12, 12, [0, 2], 128, True),
    ],
)
def test_what_each_objective_asks_for_with_ten_natural_classes(
    objective, virtual_classes, outputs, targets, rows, uses_virtual
):
    assert objective.outputs(10, virtual_classes) == outputs
    assert objective.virtual_targets(torch.tensor([0, 2]), 10).tolist() == targets
    assert objective.virtual_images(128) == (VirtualBatch(rows) if rows else None)
    if rows == 128:
        assert objective.virtual_images(7) == VirtualBatch(7)
    assert objective.uses_virtual == uses_virtual


@pytest.mark.parametrize("objective", [Plain(), Naive(), VHL(), VFA()])
def test_only_vftl_pretrains(objective):
    assert objective.pretraining is None
    assert VFTL().pretraining == Pretraining(epochs=5, lr=0.01, momentum=0.9)


@pytest.mark.parametrize("objective", [Plain(), Naive(), VHL(), VFTL()])
def test_only_vfa_shares_constants(objective):
    assert objective.shared(3, {"last": 4}, 0) == {}


@pytest.mark.parametrize(
    ("objective", "taps"),
    [
        (Plain(), ("last",)),
        (Naive(), ("last",)),
        (VHL(tap="deep"), ("stage4",)),
        (VFA(tap="stage1"), ("stage1",)),
    ],
)
def test_what_a_loss_reads(objective, taps):
    assert objective.taps() == taps


def test_a_batch_without_chance_says_so():
    """As of somebody else's loop, where an objective that draws needs a source."""
    batch = Batch({}, torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64), torch.ones(1), 3)
    with pytest.raises(VHLError, match="without a source of chance"):
        batch.normal((2, 3))
