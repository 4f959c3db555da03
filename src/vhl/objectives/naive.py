"""Naive VHL: train on natural and virtual data, calibrate nothing."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from vhl.objectives.base import Batch
from vhl.objectives.plain import Plain


class Naive(Plain):
    """Cross-entropy on natural and virtual data in one batch, without calibration (VHL, section 5.3).

    mean CE(natural) + mean CE(virtual), both over all C_d + C_v outputs.
    """

    uses_virtual: ClassVar[bool] = True

    virtual_batch: int | None = Field(
        None, ge=1, description="B_v: virtual images in each batch; unset is as many as natural ones"
    )
    shared_labels: bool = Field(
        False, description="virtual class c shares output c with natural class c, instead of C_d + c"
    )

    def virtual_rows(self, natural: int) -> int:
        return self.virtual_batch or natural

    def outputs(self, classes: int, virtual_classes: int) -> int:
        return max(classes, virtual_classes) if self.shared_labels else classes + virtual_classes

    def virtual_targets(self, virtual_labels: Tensor, classes: int) -> Tensor:
        return virtual_labels if self.shared_labels else virtual_labels + classes

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        assert batch.virtual_labels is not None
        targets = self.virtual_targets(batch.virtual_labels, batch.classes)
        virtual = cross_entropy(batch.logits[len(batch.labels) :], targets)
        return {**super().loss(batch), "virtual": virtual}
