"""What the publishers of a dataset offer, and how to tell their images from others."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

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
        train = replace(dataset.train, labels=dataset.train.labels.astype("<i8"))
        return cls(train.fingerprint(), _order_free(dataset.test))


def _order_free(images: ImageSet) -> str:
    labels = images.labels.astype("<i8")
    samples = sorted(
        hashlib.sha256(image.tobytes() + label.tobytes()).digest()
        for image, label in zip(images.images, labels, strict=True)
    )
    return hashlib.sha256(b"".join(samples)).hexdigest()
