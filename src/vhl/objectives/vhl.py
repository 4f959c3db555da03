"""Virtual Homogeneity Learning (Tang et al., ICML 2022)."""

from __future__ import annotations

from pydantic import Field, model_validator
from torch import Tensor

from vhl.objectives._calibrated import Calibrated
from vhl.objectives.base import Batch, full_precision
from vhl.objectives.distances.supcon import SupCon, supcon
from vhl.objectives.naive import Naive


class VHL(Calibrated, Naive):
    """Virtual Homogeneity Learning: natural features are pulled to virtual ones of their class (equation 4).

    mean CE(natural) + mean CE(virtual) + λ · d(natural, stop-gradient(virtual)) + λ_v · SupCon(virtual),
    where natural class c and virtual class c carry the same label in d.
    """

    release = {"virtual_calibration": 0.1}

    virtual_calibration: float = Field(
        0.0, ge=0, description="λ_v: weight of SupCon among virtual features alone"
    )
    detach: bool = Field(True, description="let no gradient of the pull reach the virtual features")

    @model_validator(mode="after")
    def _virtual_calibration_is_supcon(self) -> VHL:
        if self.virtual_calibration and not isinstance(self.distance, SupCon):
            raise ValueError(
                "virtual_calibration is SupCon among virtual features: set it to 0 with another distance"
            )
        return self

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        assert batch.virtual_labels is not None
        terms = super().loss(batch)
        features = full_precision(batch.features[self.tap]).flatten(1)
        natural, virtual = features[: len(batch.labels)], features[len(batch.labels) :]
        if self.calibration:
            target = virtual.detach() if self.detach else virtual
            distance = self.distance(natural, batch.labels, batch.weights, target, batch.virtual_labels)
            terms["calibration"] = self.calibration * distance
        if self.virtual_calibration:
            assert isinstance(self.distance, SupCon)
            among_virtual = supcon(virtual, batch.virtual_labels, temperature=self.distance.temperature)
            terms["virtual_calibration"] = self.virtual_calibration * among_virtual
        return terms
