"""Up-sampled Gaussian noise."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch.nn.functional import interpolate

from vhl.data.images import ImageSet
from vhl.virtual._pixels import assemble
from vhl.virtual.base import DrawnGenerator, Order

_CHUNK = 500  # images at a time: small enough for the processor's cache


class Noise(DrawnGenerator):
    """Gaussian noise on a coarse grid, up-sampled: cheap, and nearly as good as StyleGAN in the paper.

    Class mean m_c ~ N(0, 1) on a C×8×8 grid, sample = m_c + 0.5·N(0, 1), bilinear up-sampling to the image
    size, clamped to [0, 1] (VHL, appendix C.3, "upsampling from the pure noise").
    """

    version: ClassVar[int | None] = 1

    grid: int = Field(8, ge=1, description="side of the coarse grid the noise is drawn on")
    deviation: float = Field(0.5, ge=0, description="standard deviation of a sample around its class mean")

    def draw(self, order: Order) -> ImageSet:
        height, width, channels = order.shape
        means_rng, noise_rng = np.random.default_rng(order.fixed), np.random.default_rng(order.samples)
        means = means_rng.standard_normal((order.classes, channels, self.grid, self.grid), np.float32)
        labels = order.labels

        def make(part: slice) -> torch.Tensor:
            coarse = means[labels[part]]
            coarse += self.deviation * noise_rng.standard_normal(coarse.shape, np.float32)
            # channels last is the order the bytes are stored in: it saves a transposition
            maps = torch.from_numpy(coarse).to(order.place.device, memory_format=torch.channels_last)
            return interpolate(maps, (height, width), mode="bilinear")

        return assemble(labels, order.shape, make, chunk=_CHUNK, progress=order.place.progress)
