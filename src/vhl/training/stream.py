"""Images on the device: batches are gathered, augmented and normalised there in one go."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vhl.data.images import ImageSet, ImageStream

Chance = dict[str, np.ndarray]
"""Random choices for a number of samples, by name; drawn on the CPU, the same for every device."""


class Stream:
    """Labelled 8-bit images on a device, and the batches made of them."""

    def __init__(
        self,
        images: ImageSet,
        settings: ImageStream,
        statistics: tuple[np.ndarray, np.ndarray],
        device: torch.device,
        *,
        augment: bool = True,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._made_of = images, settings, statistics, device, dtype
        self.shape = images.shape
        self.height, self.width, _ = images.shape
        self.padding = settings.padding(self.height) if augment else 0
        self.flip = settings.flip and augment
        self.cutout = settings.cutout if augment else 0
        pad = (self.padding, self.padding)
        # Padded once, so that a crop is a gather; black, as if padded before normalisation.
        self.images = torch.from_numpy(np.pad(images.images, ((0, 0), pad, pad, (0, 0)))).to(device)
        self.labels = torch.from_numpy(images.labels).to(device)
        mean, std = statistics
        self.scale = torch.tensor(1 / (255 * std), dtype=dtype, device=device)
        self.shift = torch.tensor(-mean / std, dtype=dtype, device=device)
        self._rows = torch.arange(self.height, device=device)
        self._columns = torch.arange(self.width, device=device)

    tiles = 1
    """Images to a side of what :meth:`batch` makes."""

    def order(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """``count`` indices from shuffled passes over all samples, one after the other."""
        passes = [rng.permutation(len(self)) for _ in range(-(-count // len(self)))]
        return np.concatenate(passes)[:count]

    def plain(self) -> Stream:
        """The same images, as they are."""
        images, settings, statistics, device, dtype = self._made_of
        return Stream(images, settings, statistics, device, augment=False, dtype=dtype)

    def __len__(self) -> int:
        return len(self.labels)

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Chance:
        """The random choices of augmentation for ``shape`` samples."""
        chance: Chance = {}
        if self.padding:
            chance["row"], chance["column"] = rng.integers(0, 2 * self.padding + 1, (2, *shape))
        if self.flip:
            chance["flip"] = rng.random(shape, np.float32) < 0.5
        if self.cutout:
            chance["hole_row"] = rng.integers(0, self.height, shape)
            chance["hole_column"] = rng.integers(0, self.width, shape)
        return chance

    def batch(self, index: Tensor, chance: dict[str, Tensor]) -> Tensor:
        """Normalised images (N, C, H, W), channels last in memory."""
        pixels = self._gather(index, chance).to(self.scale.dtype) * self.scale + self.shift
        if self.cutout:
            pixels = pixels * self._keep(chance)[..., None]
        return pixels.permute(0, 3, 1, 2)

    def _gather(self, index: Tensor, chance: dict[str, Tensor]) -> Tensor:
        if not (self.padding or self.flip):
            return self.images[index]
        rows, columns = self._rows[None], self._columns[None]
        if self.flip:
            columns = torch.where(chance["flip"][:, None], self.width - 1 - columns, columns)
        if self.padding:
            rows, columns = rows + chance["row"][:, None], columns + chance["column"][:, None]
        return self.images[index[:, None, None], rows[:, :, None], columns[:, None, :]]

    def _keep(self, chance: dict[str, Tensor]) -> Tensor:
        """0 inside the hole of each image, 1 elsewhere (DeVries and Taylor, 2017)."""
        low, high = self.cutout // 2, self.cutout - self.cutout // 2
        row = self._rows[None] - chance["hole_row"][:, None]
        column = self._columns[None] - chance["hole_column"][:, None]
        in_row, in_column = (row >= -low) & (row < high), (column >= -low) & (column < high)
        return ~(in_row[:, :, None] & in_column[:, None, :])
