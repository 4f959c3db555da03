"""Virtual images at a fraction of the natural ones' size, several to the place of one."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vhl.data.images import ImageSet, ImageStream
from vhl.errors import VHLError
from vhl.training.stream import Stream


class MosaicStream(Stream):
    """Batches of mosaics, m × m small images each; crop, flip and cutout act on each of them.

    What the settings say of crop and cutout is in pixels of a whole mosaic.
    """

    def __init__(
        self,
        images: ImageSet,
        settings: ImageStream,
        statistics: tuple[np.ndarray, np.ndarray],
        device: torch.device,
        *,
        tiles: int,
        of_one_class: bool,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        crop = None if settings.crop is None else settings.crop // tiles
        small = settings.model_copy(update={"crop": crop, "cutout": settings.cutout // tiles})
        super().__init__(images, small, statistics, device, dtype=dtype)
        self.tiles = tiles
        self._classes = _members(images.labels, tiles**2) if of_one_class else None

    def order(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """As of any stream; with mosaics of one class, shuffled groups of a class's shuffled samples."""
        if self._classes is None:
            return super().order(rng, count)
        size, found = self.tiles**2, list[np.ndarray]()
        while sum(map(len, found)) < count:
            shuffled = [rng.permutation(members) for members in self._classes]
            groups = [own[: len(own) // size * size].reshape(-1, size) for own in shuffled]
            found.append(rng.permutation(np.concatenate(groups)).ravel())
        return np.concatenate(found)[:count]

    def batch(self, index: Tensor, chance: dict[str, Tensor]) -> Tensor:
        """Mosaics (N / m², C, H, W) of N samples, row by row."""
        small = super().batch(index, chance).permute(0, 2, 3, 1)
        return assemble(small, self.tiles).permute(0, 3, 1, 2)


def assemble(small: Tensor, tiles: int) -> Tensor:
    """Mosaics (N / m², m·h, m·w, C) of images (N, h, w, C), the first m² in the first."""
    _, height, width, channels = small.shape
    rows = small.view(-1, tiles, tiles, height, width, channels).transpose(2, 3)
    return rows.reshape(-1, tiles * height, tiles * width, channels)


def _members(labels: np.ndarray, least: int) -> list[np.ndarray]:
    """The samples of each class, of which there must be enough for a mosaic."""
    found = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    fewest = min(map(len, found))
    if fewest < least:
        raise VHLError(
            f"objective.mosaic_classes = same: a virtual class has {fewest} images, fewer than the {least} "
            "of a mosaic; raise virtual.per_class, or set objective.mosaic_classes=mixed."
        )
    return found
