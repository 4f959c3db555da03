"""Tiny-ImageNet in its official form: a zip archive of JPEG files, or the folder it unpacks to."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar
from zipfile import ZipFile

import numpy as np
from pydantic import Field

from vhl.data.decode import decode_all
from vhl.data.images import Dataset, Flip, ImageSet
from vhl.data.sources._official import OfficialFile
from vhl.data.sources._reading import get_command, reading
from vhl.data.sources.base import Source, split
from vhl.errors import VHLError

_FOLDER = "tiny-imagenet-200"
_TRAIN = re.compile(r"train/(n\d+)/images/[^/]+\.JPEG")
_ANNOTATIONS = "val/val_annotations.txt"
_TEST_SHARE = 0.1  # as many as the official validation images: 50 of 500 a class

Labelled = list[tuple[str, str]]
"""Image names with the WordNet number of their class."""


class TinyImageNet(Source):
    """Tiny-ImageNet: 110,000 colour photographs in 200 classes, 64×64 pixels.

    The official validation images are the test images; where they are absent, a tenth of the training images
    is. Classes are in the order of their WordNet numbers, not in that of the official ``wnids.txt``, which is
    shuffled. Le and Yang, Tiny ImageNet visual recognition challenge, 2015.
    """

    official: ClassVar[tuple[OfficialFile, ...]] = (
        OfficialFile(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            f"{_FOLDER}.zip",
            "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
        ),
    )
    places: ClassVar[tuple[str, ...]] = (f"{_FOLDER}.zip", _FOLDER)

    classes: int | None = Field(
        None, ge=2, description="the first so many classes only; unset is all of them"
    )
    size: int = Field(64, ge=4, description="resize images to this many pixels a side; 64 keeps them")
    flip: Flip = True

    def read(self, data_dir: Path, seed: int) -> Dataset:
        remedy = get_command(self.name, data_dir)
        place = next(
            (data_dir / p for p in self.places if (data_dir / p).exists()), data_dir / self.places[0]
        )
        with reading(place, remedy), _opened(place) as (names, read):
            train = [(name, match[1]) for name in names if (match := _TRAIN.fullmatch(name))]
            index = {number: label for label, number in enumerate(self._first_classes(train, place))}
            test: Labelled = []
            if _ANNOTATIONS in names:
                with reading(place / _ANNOTATIONS, remedy):
                    test = _read_annotations(read(_ANNOTATIONS), index)

            def decode(labelled: Labelled) -> ImageSet:
                chosen = [pair for pair in labelled if pair[1] in index]
                images = decode_all(place, [name for name, _ in chosen], read, self.size, remedy)
                return ImageSet(images, np.array([index[number] for _, number in chosen], np.int64))

            parts = (decode(train), decode(test)) if test else split(decode(train), _TEST_SHARE, seed)
        return Dataset(*parts, tuple(index))

    def _first_classes(self, train: Labelled, place: Path) -> list[str]:
        found = sorted({number for _, number in train})
        if len(found) < 2:
            raise ValueError("it holds training images of fewer than two classes")
        if self.classes is not None and self.classes > len(found):
            raise VHLError(
                f"{place} holds {len(found)} classes; set classes to that or fewer, not {self.classes}."
            )
        return found[: self.classes]


@contextmanager
def _opened(place: Path) -> Iterator[tuple[list[str], Callable[[str], bytes]]]:
    """The names in a folder or archive, relative to its top, and how to read one."""
    if place.is_dir():
        found = [*place.glob("train/*/images/*"), *place.glob(_ANNOTATIONS)]
        names = sorted(file.relative_to(place).as_posix() for file in found)
        yield names, lambda name: (place / name).read_bytes()
    else:
        with ZipFile(place) as archive:
            names = sorted(name.removeprefix(f"{_FOLDER}/") for name in archive.namelist())
            yield names, lambda name: archive.read(f"{_FOLDER}/{name}")


def _read_annotations(raw: bytes, classes: Container[str]) -> Labelled:
    """Lines of image, WordNet number and a box, divided by tabs."""
    rows = [line.split("\t") for line in raw.decode("ascii").splitlines()]
    if not rows or min(len(row) for row in rows) < 2:
        raise ValueError("it does not name an image and a class in every line")
    chosen = [(f"val/images/{row[0]}", row[1]) for row in rows if row[1] in classes]
    if not chosen:
        raise ValueError("it names no image of the classes in train")
    return chosen
