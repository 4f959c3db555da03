"""What the publishers of a dataset offer, and how to tell their images from others."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vhl.data.images import Dataset, ImageSet


@dataclass(frozen=True)
class OfficialFile:
    """A published file: its address, its place in the data directory and its SHA-256."""

    url: str
    path: str
    sha256: str

    def is_at(self, file: Path) -> bool:
        """Whether ``file`` is this one, byte for byte."""
        if not file.is_file():
            return False
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest() == self.sha256


@dataclass(frozen=True)
class Fingerprint:
    """SHA-256 of a dataset's pixels and labels, the same for every file format they come in.

    The training images count in their order, because partitions are made by position; test images do not,
    because accuracy does not depend on their order.
    """

    train: str
    test: str

    @classmethod
    def of(cls, dataset: Dataset) -> Fingerprint:
        return cls(_ordered(dataset.train), _order_free(dataset.test))


def _ordered(images: ImageSet) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(images.images).data)
    digest.update(images.labels.astype("<i8").tobytes())
    return digest.hexdigest()


def _order_free(images: ImageSet) -> str:
    labels = images.labels.astype("<i8")
    samples = sorted(
        hashlib.sha256(image.tobytes() + label.tobytes()).digest()
        for image, label in zip(images.images, labels, strict=True)
    )
    return hashlib.sha256(b"".join(samples)).hexdigest()
