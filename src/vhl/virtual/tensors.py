"""A virtual set as tensors, for somebody else's training loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vhl.config.registry import build
from vhl.data.sources.base import data_directory
from vhl.virtual.base import Generator, Shape
from vhl.virtual.sets import virtual_set


def virtual_images(
    generator: str | Mapping[str, Any] | Generator,
    *,
    classes: int,
    shape: Shape,
    per_class: int | None = None,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Virtual images (N, C, H, W), normalised, and their labels (N), 0 to ``classes`` − 1.

    ``shape`` is (height, width, channels). The same arguments give the same set on every machine, but for a
    processor's rounding, so clients can make it themselves.

    >>> images, labels = virtual_images("noise", classes=3, shape=(8, 8, 1), per_class=2)
    >>> images.shape, labels.tolist()
    (torch.Size([6, 1, 8, 8]), [0, 0, 1, 1, 2, 2])
    """
    made = build(Generator, "generator", generator)
    if per_class is not None:
        made = made.model_copy(update={"per_class": per_class})
    images = virtual_set(made, classes, shape, seed, data_directory())
    mean, std = (torch.tensor(values, dtype=torch.float32) for values in made.statistics(images.images))
    pixels = (torch.from_numpy(images.images).float() / 255 - mean) / std
    return pixels.permute(0, 3, 1, 2), torch.from_numpy(images.labels)
