"""Labelled 8-bit images, and how a stream of them is augmented and normalised in training."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field, field_validator

from vhl.config.component import Component, in_a_list
from vhl.errors import VHLError

_CHUNK = 1_000  # images whose pixels are counted at a time: bounds memory

Crop = Annotated[
    int | None,
    Field(ge=0, description="random crop after padding by this many pixels; 0 is off, unset is size/8"),
]
Flip = Annotated[bool, Field(description="flip half of the images left to right in training")]
Cutout = Annotated[int, Field(ge=0, description="blank a random square of this side; 0 is off")]
Mean = Annotated[
    tuple[float, ...] | None,
    Field(description="channel means to subtract, in [0, 1]; unset is measured on the training images"),
]
Std = Annotated[
    tuple[float, ...] | None,
    Field(description="channel deviations to divide by, in [0, 1]; unset is measured likewise"),
]


@dataclass(frozen=True)
class ImageSet:
    """Labelled images: ``images`` uint8 (N, H, W, C), ``labels`` int64 (N), ``sites`` int64 (N) where known.

    ``sites`` says which client each image already belongs to, as an index into ``Dataset.sites``.
    """

    images: np.ndarray
    labels: np.ndarray
    sites: np.ndarray | None = None

    def __post_init__(self) -> None:
        """Sources and generators may be anyone's; pixels of another type would pass for black ones."""
        images, labels = np.asarray(self.images), np.asarray(self.labels)
        if images.dtype != np.uint8 or images.ndim != 4:
            raise VHLError(
                f"Images must be 8-bit (uint8) of shape (N, H, W, C), not {images.dtype} of {images.shape}."
            )
        if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
            raise VHLError(
                f"Labels must be {len(images)} whole numbers, one for each image, "
                f"not {labels.dtype} of shape {labels.shape}."
            )

    def check_labels(self, classes: int, whose: str) -> None:
        """Refuse labels that name no class."""
        if not len(self):
            return
        least, most = self.labels.min(), self.labels.max()
        if least < 0 or most >= classes:
            raise VHLError(f"{whose} has labels from {least} to {most}, but classes 0 to {classes - 1}.")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width, channels."""
        height, width, channels = self.images.shape[1:]
        return height, width, channels

    def fingerprint(self) -> str:
        """SHA-256 of the pixels and labels."""
        found = hashlib.sha256()
        for array in (self.images, self.labels):
            found.update(np.ascontiguousarray(array).data)
        return found.hexdigest()

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
    remarks: tuple[str, ...] = ()
    """Sentences about the files that a user should read."""


class ImageStream(Component):
    """How images are augmented and normalised when a batch is made; shared by sources and generators."""

    crop: Crop = None
    flip: Flip = False
    cutout: Cutout = 0
    mean: Mean = None
    std: Std = None

    _lists = field_validator("mean", "std", mode="before")(in_a_list)

    @field_validator("std")
    @classmethod
    def _divides(cls, std: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if std is not None and any(value <= 0 for value in std):
            raise ValueError("deviations to divide by must be above 0")
        return std

    def padding(self, size: int) -> int:
        """Pixels to pad before a random crop of images of this size."""
        return size // 8 if self.crop is None else self.crop

    def statistics(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Channel means and deviations to normalise with: the ones set, or those of ``images``."""
        channels = images.shape[-1]
        mean, std = self.spread("mean", channels), self.spread("std", channels)
        if mean is None or std is None:
            measured_mean, measured_std = _measure(images)
            mean = measured_mean if mean is None else mean
            # a constant channel must not divide by zero
            std = np.maximum(measured_std, 1e-6) if std is None else std
        return mean, std

    def spread(self, key: str, channels: int) -> np.ndarray | None:
        """One ``mean`` or ``std`` for each channel, where they are set: as many, or one for all."""
        values: tuple[float, ...] | None = getattr(self, key)
        if values is None:
            return None
        if len(values) not in (1, channels):
            raise VHLError(
                f"{key} of {self.name} has {len(values)} values, but the images have {channels} channels; "
                f"give one value, or one for each channel."
            )
        return np.broadcast_to(np.array(values, float), channels).copy()


def _measure(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Channel means and deviations, in [0, 1], from how often each of the 256 values occurs.

    NumPy's own would make a copy of all pixels in eight times their size.
    """
    counts = np.zeros((images.shape[-1], 256))
    for start in range(0, len(images), _CHUNK):
        for channel, own in enumerate(counts):
            own += np.bincount(images[start : start + _CHUNK, ..., channel].ravel(), minlength=256)
    shares, values = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
    mean = shares @ values
    return mean, np.sqrt((shares * (values - mean[:, None]) ** 2).sum(1))
