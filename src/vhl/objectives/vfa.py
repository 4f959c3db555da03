"""Virtual feature alignment: calibrate to drawn features instead of virtual images."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from vhl.chance import Purpose, generator
from vhl.objectives._calibrated import Calibrated
from vhl.objectives.base import Batch, full_precision
from vhl.objectives.plain import Plain


class VFA(Calibrated, Plain):
    """Virtual feature alignment: natural features are pulled to drawn ones; no virtual images (section 5.3).

    Class means μ_c ~ U[0, 1]^d are drawn once for all clients; each step draws ⌊B/C⌋ + 1 features a class
    from N(μ_c, 0.05²), and mean CE(natural) + λ · d(natural, drawn) is minimised.
    """

    deviation: float = Field(0.05, ge=0, description="standard deviation of the drawn features")

    def shared(self, classes: int, features: Mapping[str, int], seed: int) -> dict[str, np.ndarray]:
        rng = generator(seed, Purpose.CONSTANTS)
        return {"means": rng.random((classes, features[self.tap]), np.float32)}

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        means = batch.shared["means"].to(batch.logits.dtype)
        per_class = (batch.size or len(batch.labels)) // batch.classes + 1
        noise = batch.normal((batch.classes, per_class, means.shape[1]))
        drawn = (means[:, None] + self.deviation * noise).flatten(0, 1)
        drawn_labels = torch.arange(batch.classes, device=drawn.device).repeat_interleave(per_class)
        natural = full_precision(batch.features[self.tap][: len(batch.labels)]).flatten(1)
        distance = self.distance(natural, batch.labels, batch.weights, drawn, drawn_labels)
        return {**super().loss(batch), "calibration": self.calibration * distance}
