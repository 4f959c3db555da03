from __future__ import annotations

import pytest
import torch

from vhl.objectives.base import Pretraining, weighted_mean
from vhl.objectives.naive import Naive
from vhl.objectives.plain import Plain
from vhl.objectives.vfa import VFA
from vhl.objectives.vftl import VFTL
from vhl.objectives.vhl import VHL


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
    assert objective.virtual_rows(128) == rows
    assert objective.virtual_rows(7) == (7 if rows == 128 else rows)
    assert objective.uses_virtual == uses_virtual


@pytest.mark.parametrize("objective", [Plain(), Naive(), VHL(), VFA()])
def test_only_vftl_pretrains(objective):
    assert objective.pretraining is None
    assert VFTL().pretraining == Pretraining(epochs=5, lr=0.01, momentum=0.9)


@pytest.mark.parametrize("objective", [Plain(), Naive(), VHL(), VFTL()])
def test_only_vfa_shares_and_draws(objective):
    assert objective.shared(3, {"last": 4}, 0) == {}
    assert objective.draws(None, 1, 8, 3, {"last": 4}) == {}
