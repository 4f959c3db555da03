"""The user's own images as NumPy arrays."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar
from zipfile import is_zipfile

import numpy as np
from pydantic import Field

from vhl.data.images import Dataset, ImageSet
from vhl.data.sources._reading import reading
from vhl.data.sources.base import Source, split
from vhl.errors import VHLError

_KEYS = ("images", "labels", "test_images", "test_labels", "sites", "classes")


class Npz(Source):
    """Your own images as NumPy arrays, npz:PATH with the arrays images and labels.

    ``images`` 8-bit (N, H, W) or (N, H, W, C) with 1 or 3 channels; ``labels`` whole numbers from 0.
    Optional: ``test_images`` and ``test_labels``; ``sites``, a number or name for each of ``images``;
    ``classes``, a name for each label; then a label may have no image.
    """

    primary: ClassVar[str | None] = "path"

    path: str = Field(min_length=1, description="the .npz file, relative to the current folder")
    test_share: float = Field(
        0.2, gt=0, lt=1, description="share of each class and site to test on, where there are no test_images"
    )

    def read(self, data_dir: Path, seed: int) -> Dataset:
        file = Path(self.path).expanduser()
        arrays = _Arrays(file, _load(file))
        train = arrays.image_set("images", "labels")
        site_names: tuple[str, ...] = ()
        if "sites" in arrays.content:
            names, sites = np.unique(arrays.column("sites", len(train), "iuU"), return_inverse=True)
            site_names = tuple(str(name) for name in names)
            train = ImageSet(train.images, train.labels, sites.astype(np.int64))
        classes = arrays.class_names(train)
        if "test_images" not in arrays.content and "test_labels" not in arrays.content:
            return Dataset(*split(train, self.test_share, seed), classes, site_names)
        test = arrays.image_set("test_images", "test_labels")
        if test.shape != train.shape:
            raise arrays.wrong(
                "test_images", f"must be of the shape of images, {train.shape}, not {test.shape}"
            )
        if test.labels.max() >= len(classes):
            raise arrays.wrong("test_labels", f"hold {test.labels.max()}, which is no label of images")
        return Dataset(train, test, classes, site_names)


def _load(file: Path) -> dict[str, np.ndarray]:
    with reading(file, "check the path, or save it again with np.savez"):
        with file.open("rb") as stream:
            if not is_zipfile(stream):
                raise ValueError("it is no complete .npz archive")
        with np.load(file, allow_pickle=False) as archive:
            return {key: archive[key] for key in _KEYS if key in archive}


class _Arrays:
    """The arrays of a file, each checked as it is asked for."""

    def __init__(self, file: Path, content: dict[str, np.ndarray]) -> None:
        self.file, self.content = file, content

    def wrong(self, key: str, what: str) -> VHLError:
        return VHLError(f"{self.file}: {key} {what}.")

    def get(self, key: str) -> np.ndarray:
        if key not in self.content:
            raise self.wrong(key, f"is missing; save it with np.savez(..., {key}=...)")
        return self.content[key]

    def image_set(self, images_key: str, labels_key: str) -> ImageSet:
        images = self.get(images_key)
        if images.ndim == 3:
            images = images[..., None]
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in (1, 3) or not images.size:
            shape = f"{self.content[images_key].dtype} {self.content[images_key].shape}"
            raise self.wrong(images_key, f"must be uint8 (N, H, W) or (N, H, W, 1 or 3), not {shape}")
        labels = self.column(labels_key, len(images), "iu").astype(np.int64)
        if labels.min() < 0:
            raise self.wrong(labels_key, f"must count from 0 and hold {labels.min()}")
        return ImageSet(images, labels)

    def column(self, key: str, length: int, kinds: str) -> np.ndarray:
        column = self.get(key)
        if column.shape != (length,) or column.dtype.kind not in kinds:
            wanted = "whole numbers or names" if "U" in kinds else "whole numbers"
            raise self.wrong(key, f"must be {length} {wanted}, not {column.dtype} {column.shape}")
        return column

    def class_names(self, train: ImageSet) -> tuple[str, ...]:
        """The names given, of which some may have no image here; else the labels themselves."""
        if "classes" in self.content:
            names, labels = self.content["classes"], int(train.labels.max()) + 1
            if names.ndim != 1 or len(names) < labels or names.dtype.kind != "U":
                raise self.wrong("classes", f"must be {labels} names, not {names.dtype} {names.shape}")
            return tuple(str(name) for name in names)
        present = np.unique(train.labels)
        gaps = np.flatnonzero(present != np.arange(len(present)))
        if len(gaps):
            raise self.wrong("labels", f"must run from 0 without gaps, but no image has label {gaps[0]}")
        return tuple(present.astype(str).tolist())
