from __future__ import annotations

import pytest
import torch

from vhl.objectives.plain import Plain


def test_it_is_the_mean_cross_entropy_without_fillers(make_batch, cross_entropy):
    batch = make_batch(outputs=4)
    terms = Plain().loss(batch)
    expected = cross_entropy(batch.logits, batch.labels, batch.weights)
    assert {name: term.item() for name, term in terms.items()} == {"natural": pytest.approx(expected)}


def test_fillers_get_no_gradient(make_batch):
    batch = make_batch(outputs=4)
    (gradient,) = torch.autograd.grad(Plain().loss(batch)["natural"], batch.logits)
    assert (gradient[-2:] == 0).all() and (gradient[:-2] != 0).all()
