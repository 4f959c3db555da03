"""Up-sampled Gaussian noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from pydantic import Field
from torch.nn.functional import interpolate

from vhl.data.images import ImageSet
from vhl.virtual._pixels import to_bytes
from vhl.virtual.base import Generator, Progress

_CHUNK = 5_000  # images at a time: bounds memory


class Noise(Generator):
    """Gaussian noise on a coarse grid, up-sampled: cheap, and nearly as good as StyleGAN in the paper.

    Class mean m_c ~ N(0, 1) on a C×8×8 grid, sample = m_c + 0.5·N(0, 1), bilinear up-sampling to the image
    size, clamped to [0, 1] (VHL, appendix C.3, "upsampling from the pure noise").
    """

    grid: int = Field(8, ge=1, description="side of the coarse grid the noise is drawn on")
    deviation: float = Field(0.5, ge=0, description="standard deviation of a sample around its class mean")

    def generate(
        self,
        classes: int,
        per_class: int,
        shape: tuple[int, int, int],
        seed: int,
        *,
        device: torch.device | str = "cpu",
        data_dir: Path | None = None,
        progress: Progress | None = None,
    ) -> ImageSet:
        height, width, channels = shape
        means_rng, noise_rng = (np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(2))
        means = means_rng.standard_normal((classes, channels, self.grid, self.grid), np.float32)
        labels = np.repeat(np.arange(classes), per_class)
        images = np.empty((len(labels), height, width, channels), np.uint8)
        for start in range(0, len(labels), _CHUNK):
            chunk = slice(start, min(start + _CHUNK, len(labels)))
            coarse = means[labels[chunk]]
            coarse = coarse + self.deviation * noise_rng.standard_normal(coarse.shape, np.float32)
            fine = interpolate(torch.from_numpy(coarse).to(device), (height, width), mode="bilinear")
            images[chunk] = to_bytes(fine)
            if progress:
                progress(chunk.stop, len(labels))
        return ImageSet(images, labels)
