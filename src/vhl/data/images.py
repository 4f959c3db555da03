"""Labelled 8-bit images, and how a stream of them is augmented and normalised in training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pydantic import Field

from vhl.component import Component


@dataclass(frozen=True)
class ImageSet:
    """Labelled images: ``images`` uint8 (N, H, W, C), ``labels`` int64 (N), ``sites`` int64 (N) where known.

    ``sites`` says which client each image already belongs to, as an index into ``Dataset.sites``.
    """

    images: np.ndarray
    labels: np.ndarray
    sites: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width, channels."""
        height, width, channels = self.images.shape[1:]
        return height, width, channels

    def take(self, index: np.ndarray) -> ImageSet:
        return ImageSet(
            self.images[index], self.labels[index], None if self.sites is None else self.sites[index]
        )


@dataclass(frozen=True)
class Dataset:
    """What a source yields: training, test and (where asked for) validation images with their class names."""

    train: ImageSet
    test: ImageSet
    classes: tuple[str, ...]
    sites: tuple[str, ...] = ()
    validation: ImageSet | None = None


class ImageStream(Component):
    """How images are augmented and normalised when a batch is made; shared by sources and generators."""

    crop: int | None = Field(
        None, ge=0, description="random crop after padding by this many pixels; 0 is off, unset is size/8"
    )
    flip: bool = Field(False, description="flip half of the training images left to right")
    cutout: int = Field(0, ge=0, description="blank a random square of this side; 0 is off")
    mean: tuple[float, ...] | None = Field(
        None, description="channel means to subtract, in [0, 1]; unset is measured on the training images"
    )
    std: tuple[float, ...] | None = Field(
        None, description="channel deviations to divide by, in [0, 1]; unset is measured likewise"
    )

    def padding(self, size: int) -> int:
        """Pixels to pad before a random crop of images of this size."""
        return size // 8 if self.crop is None else self.crop

    def statistics(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Channel means and deviations to normalise with: the ones set, or those of ``images``."""
        channels = images.shape[-1]
        if self.mean is not None and self.std is not None:
            mean, std = np.asarray(self.mean), np.asarray(self.std)
        else:
            scaled = images.reshape(-1, channels)
            mean = scaled.mean(0) / 255 if self.mean is None else np.asarray(self.mean)
            std = scaled.std(0) / 255 if self.std is None else np.asarray(self.std)
        std = np.maximum(std, 1e-6)  # a constant channel must not divide by zero
        return np.broadcast_to(mean, channels).copy(), np.broadcast_to(std, channels).copy()
