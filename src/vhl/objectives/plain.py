"""Cross-entropy on the client's own data."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy

from vhl.objectives.base import Batch, Objective, weighted_mean


class Plain(Objective):
    """Cross-entropy on the client's own data: federated learning without VHL."""

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        natural = cross_entropy(batch.logits[: len(batch.labels)], batch.labels, reduction="none")
        return {"natural": weighted_mean(natural, batch.weights)}
