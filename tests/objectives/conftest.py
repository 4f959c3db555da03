"""Random batches, and the losses of the paper written once more in NumPy, in double precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from vhl.objectives.base import Batch
from vhl.objectives.distances.base import Distance


class _Recorder(Distance):
    """Remembers what it was given; the squared length of everything, so that gradients flow."""

    def __call__(self, natural, labels, weights, virtual, virtual_labels):
        _received.append((natural, labels, weights, virtual, virtual_labels))
        return natural.square().sum() + virtual.square().sum()


_received: list[tuple[torch.Tensor, ...]] = []


@pytest.fixture
def recorder() -> tuple[Distance, list[tuple[torch.Tensor, ...]]]:
    """A distance of one's own, and the list of what it was called with."""
    _received.clear()
    return _Recorder(), _received


@pytest.fixture
def make_batch() -> Callable[..., Batch]:
    """Natural rows (two of them fillers), then virtual rows; a vector ``last`` and a map ``stage2``."""

    def make(
        classes: int = 4,
        outputs: int = 8,
        natural: int = 9,
        virtual: int = 0,
        virtual_classes: int = 4,
        **more: Any,
    ) -> Batch:
        rng, rows = np.random.default_rng(11), natural + virtual
        weights = np.ones(natural)
        weights[-2:] = 0

        def draw(*shape: int) -> torch.Tensor:
            return torch.from_numpy(rng.standard_normal(shape)).requires_grad_()

        return Batch(
            features={"last": draw(rows, 6), "stage2": draw(rows, 2, 3, 3)},
            logits=draw(rows, outputs),
            labels=torch.from_numpy(rng.integers(0, classes, natural)),
            weights=torch.from_numpy(weights),
            classes=classes,
            virtual_labels=torch.from_numpy(rng.integers(0, virtual_classes, virtual)) if virtual else None,
            **more,
        )

    return make


@pytest.fixture
def cross_entropy() -> Callable[..., float]:
    """−Σ w_i log softmax(z_i)[y_i] / Σ w_i."""

    def compute(logits, targets, weights=None) -> float:
        z, y = logits.detach().numpy(), np.asarray(targets)
        w = np.ones(len(y)) if weights is None else weights.numpy()
        log_sum = np.log(np.exp(z).sum(1))
        return float((w * (log_sum - z[np.arange(len(y)), y])).sum() / w.sum())

    return compute


@pytest.fixture
def contrast() -> Callable[..., float]:
    """SupCon with one matrix, where the samples of weight 0 are taken out beforehand."""

    def compute(features, labels, weights, temperature: float = 0.07) -> float:
        kept = np.asarray(weights) > 0
        flat, y = np.asarray(features).reshape(len(kept), -1)[kept], np.asarray(labels)[kept]
        unit = flat / np.linalg.norm(flat, axis=1, keepdims=True)
        scaled = np.exp(unit @ unit.T / temperature)
        np.fill_diagonal(scaled, 0)
        same = (y[:, None] == y[None, :]) & ~np.eye(len(y), dtype=bool)
        shares = np.log(np.where(same, scaled / scaled.sum(1, keepdims=True), 1))
        return float(-(shares.sum(1) / np.maximum(same.sum(1), 1)).mean())

    return compute
