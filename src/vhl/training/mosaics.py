"""Virtual images at a fraction of the natural ones' size, several to the place of one."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vhl.chance import Purpose, words
from vhl.data.images import ImageSet, ImageStream
from vhl.errors import VHLError
from vhl.training.streams import Choices, Stream


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
        self._one_class = of_one_class
        if of_one_class:
            _check_members(images.labels, tiles**2)

    def shuffled(self, seed: int, purpose: Purpose, round_: int, client: int = 0, turn: int = 0) -> Tensor:
        """As of any stream; with mosaics of one class, shuffled groups of a class's shuffled samples.

        What does not fill a group is left out of this round.
        """
        if not self._one_class:
            return super().shuffled(seed, purpose, round_, client, turn)
        size, device = self.tiles**2, self.labels.device
        place = torch.arange(len(self), device=device)
        own, group, *_ = words(seed, purpose, round_, client, turn, place)
        by_class = (self.labels << 32 | own).argsort(stable=True)
        counts = self.labels.bincount()
        first = (counts.cumsum(0) - counts)[self.labels[by_class]]
        in_class, held = place - first, counts[self.labels[by_class]]
        groups = by_class[in_class < held // size * size].view(-1, size)
        return groups[group[groups[:, 0]].argsort(stable=True)].flatten()

    def batch(self, index: Tensor, choices: Choices) -> Tensor:
        """Mosaics (N / m², C, H, W) of N samples, row by row."""
        small = super().batch(index, choices).permute(0, 2, 3, 1)
        return assemble(small, self.tiles).permute(0, 3, 1, 2)


def assemble(small: Tensor, tiles: int) -> Tensor:
    """Mosaics (N / m², m·h, m·w, C) of images (N, h, w, C), the first m² in the first."""
    _, height, width, channels = small.shape
    rows = small.view(-1, tiles, tiles, height, width, channels).transpose(2, 3)
    return rows.reshape(-1, tiles * height, tiles * width, channels)


def _check_members(labels: np.ndarray, least: int) -> None:
    """Of each class there must be enough for a mosaic."""
    fewest = np.unique(labels, return_counts=True)[1].min()
    if fewest < least:
        raise VHLError(
            f"objective.mosaic_classes = same: a virtual class has {fewest} images, fewer than the {least} "
            "of a mosaic; raise virtual.per_class, or set objective.mosaic_classes=mixed."
        )
