"""Naive VHL: train on natural and virtual data, calibrate nothing."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from vhl.objectives.base import Batch
from vhl.objectives.plain import Plain
from vhl.objectives.virtual_batch import VirtualBatch

Share = Annotated[
    float | None,
    Field(
        gt=0,
        lt=1,
        description="share of virtual images in batch-norm statistics; unset is by count, as in the paper",
    ),
]
Tiles = Annotated[
    int,
    Field(ge=1, description="m² virtual images of 1/m size are tiled into one: B_v / m² places; 1 is off"),
]


class Naive(Plain):
    """Cross-entropy on natural and virtual data in one batch, without calibration (VHL, section 5.3).

    mean CE(natural) + mean CE(virtual), both over all C_d + C_v outputs; the second may have a weight.
    """

    uses_virtual: ClassVar[bool] = True

    virtual_batch: int | None = Field(
        None, ge=1, description="B_v: virtual images in each batch; unset is as many as natural ones"
    )
    virtual_weight: float = Field(1.0, ge=0, description="weight of the virtual images' cross-entropy")
    shared_labels: bool = Field(
        False, description="virtual class c shares output c with natural class c, instead of C_d + c"
    )

    batch_norm_share: Share = None
    mosaic: Tiles = 1
    mosaic_classes: Literal["mixed", "same"] = Field(
        "mixed", description="the tiles of a mosaic: of any classes, or all of the same"
    )

    def virtual_images(self, natural: int) -> VirtualBatch:
        rows, one_class = self.virtual_batch or natural, self.mosaic_classes == "same"
        return VirtualBatch(rows, self.mosaic, one_class, self.batch_norm_share)

    def outputs(self, classes: int, virtual_classes: int) -> int:
        return max(classes, virtual_classes) if self.shared_labels else classes + virtual_classes

    def virtual_targets(self, virtual_labels: Tensor, classes: int) -> Tensor:
        return virtual_labels if self.shared_labels else virtual_labels + classes

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        assert batch.virtual_labels is not None
        targets = self.virtual_targets(batch.virtual_labels, batch.classes)
        terms = super().loss(batch)
        if self.virtual_weight:
            virtual = cross_entropy(batch.logits[len(batch.labels) :], targets)
            terms["virtual"] = self.virtual_weight * virtual
        return terms
