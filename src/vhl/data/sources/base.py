"""What a data source is: files in their official form go in, 8-bit images come out."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import platformdirs
from PIL import Image
from pydantic import Field

from vhl.data.images import Dataset, ImageSet, ImageStream
from vhl.data.sources._official import Fingerprint, OfficialFile
from vhl.errors import VHLError


def data_directory(given: str | Path | None = None) -> Path:
    """The one data directory: ``--data-dir``, else ``$VHL_DATA``, else the user's cache."""
    return Path(given or os.environ.get("VHL_DATA") or platformdirs.user_cache_path("vhl"))


class Source(ImageStream):
    """A data source; a new one is one file with a class that overrides :meth:`read`."""

    room: ClassVar[str] = "sources"

    official: ClassVar[tuple[OfficialFile, ...]] = ()
    """The published files that ``vhl data get`` fetches."""

    places: ClassVar[tuple[str, ...]] = ()
    """Files or folders of the data directory that may hold the images; the first that exists is read."""

    fingerprint: ClassVar[Fingerprint | None] = None
    """The official images' fingerprint, where they come in several file formats."""

    size: int | None = Field(
        None, ge=4, description="resize images to this many pixels a side; unset keeps them"
    )
    channels: Literal[1, 3] | None = Field(
        None, description="1 grey, 3 colour; unset keeps what the files have"
    )
    validation: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the training images kept aside, so that nothing is chosen on test data",
    )

    def read(self, data_dir: Path, seed: int) -> Dataset:
        """Read the files as they are (``seed`` decides a split where the files have none)."""
        raise NotImplementedError

    def load(self, data_dir: Path, seed: int = 0, *, whole: bool = True) -> Dataset:
        """Read, bring to the size and channels asked for, and split off the validation images.

        Not ``whole`` are the data of one site of several, which may have a single class, or too few images
        to hold some of them out.
        """
        dataset = self.read(data_dir, seed)
        if whole and len(dataset.classes) < 2:
            found = ", ".join(dataset.classes)
            raise VHLError(f"data = {self.name} has one class only ({found}); at least two are needed.")
        for images in (dataset.train, dataset.test):
            images.check_labels(len(dataset.classes), f"data = {self.name}")
        train, test = self._fit(dataset.train), self._fit(dataset.test)
        validation = None
        if self.validation:
            train, validation = split(train, self.validation, seed)
        for words, held_out in (("test", test), ("validation", validation)):
            if whole and held_out is not None and not len(held_out):
                raise VHLError(
                    f"data = {self.name} has no {words} images: the share that is held out of {len(train)} "
                    "is none; choose a larger one."
                )
        return replace(dataset, train=train, test=test, validation=validation)

    def _fit(self, images: ImageSet) -> ImageSet:
        pixels = images.images
        if self.size is not None and pixels.shape[1:3] != (self.size, self.size):
            pixels = resize(pixels, self.size)  # before grey is repeated: a third of the work
        return ImageSet(set_channels(pixels, self.channels), images.labels, images.sites)


def split(images: ImageSet, share: float, seed: int) -> tuple[ImageSet, ImageSet]:
    """Split off about ``share`` of each class (of each site where sites are known), at random by ``seed``.

    Of few images that may be none.
    """
    rng = np.random.default_rng([seed, 0x5117])
    groups = (
        images.labels if images.sites is None else images.sites * (images.labels.max() + 1) + images.labels
    )
    aside = np.zeros(len(images), bool)
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        aside[rng.permutation(members)[: round(share * len(members))]] = True
    if aside.all():
        raise VHLError(
            f"A share of {share} of {len(images)} images leaves none to train on; choose another share."
        )
    return images.take(np.flatnonzero(~aside)), images.take(np.flatnonzero(aside))


def set_channels(images: np.ndarray, channels: int | None) -> np.ndarray:
    """Repeat grey to three channels, or turn colour into grey by ITU-R 601 luma."""
    if channels is None or images.shape[-1] == channels:
        return images
    if channels == 3:
        return np.repeat(images, 3, axis=-1)
    luma: np.ndarray = images @ np.array([0.299, 0.587, 0.114])
    return luma.round()[..., None].astype(np.uint8)


def resize(images: np.ndarray, size: int) -> np.ndarray:
    """Resize every image to a square by Pillow's bilinear filter (anti-aliased when shrinking)."""
    channels = images.shape[-1]
    resized = np.empty((len(images), size, size, channels), np.uint8)
    for image, out in zip(images, resized, strict=True):
        picture = Image.fromarray(image[..., 0] if channels == 1 else image)
        out[:] = np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR)).reshape(out.shape)
    return resized
