"""From a generator's floating-point output to a labelled set of stored 8-bit images."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch.nn.functional import interpolate

from vhl.data.images import ImageSet
from vhl.virtual.base import Progress, Shape


def to_bytes(images: torch.Tensor) -> np.ndarray:
    """Clamp (N, C, H, W) images to [0, 1] and store them as 8-bit (N, H, W, C)."""
    levels = images.clamp(0, 1).mul_(255).round_().to(torch.uint8)
    return levels.permute(0, 2, 3, 1).cpu().numpy()


def resize(images: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Bilinear resizing of (N, C, H, W) images, anti-aliased where they shrink."""
    if images.shape[2:] == (height, width):
        return images
    return interpolate(images, (height, width), mode="bilinear", antialias=True)


def assemble(
    labels: np.ndarray,
    shape: Shape,
    make: Callable[[slice], torch.Tensor],
    *,
    chunk: int,
    progress: Progress | None,
) -> ImageSet:
    """A set with the images that ``make(part)`` → (N, C, H, W) makes for each part of the labels.

    The chunk bounds memory and decides nothing else where one row of random numbers is drawn for each image.
    """
    images = np.empty((len(labels), *shape), np.uint8)
    for start in range(0, len(labels), chunk):
        part = slice(start, min(start + chunk, len(labels)))
        images[part] = to_bytes(make(part))
        if progress:
            progress(part.stop, len(labels))
    return ImageSet(images, labels)
