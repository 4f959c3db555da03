"""Virtual feature alignment: calibrate to drawn features instead of virtual images."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

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
        rng = np.random.default_rng([seed, 0xFEA7])
        return {"means": rng.random((classes, features[self.tap]), np.float32)}

    def draws(
        self, rng: np.random.Generator, steps: int, batch: int, classes: int, features: Mapping[str, int]
    ) -> dict[str, np.ndarray]:
        per_class = batch // classes + 1
        return {"noise": rng.standard_normal((steps, classes, per_class, features[self.tap]), np.float32)}

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        means, noise = (x.to(batch.logits.dtype) for x in (batch.shared["means"], batch.draws["noise"]))
        drawn = (means[:, None] + self.deviation * noise).flatten(0, 1)
        drawn_labels = torch.arange(batch.classes, device=drawn.device).repeat_interleave(noise.shape[1])
        natural = full_precision(batch.features[self.tap][: len(batch.labels)]).flatten(1)
        distance = self.distance(natural, batch.labels, batch.weights, drawn, drawn_labels)
        return {**super().loss(batch), "calibration": self.calibration * distance}
