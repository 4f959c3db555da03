"""CIFAR-10 and CIFAR-100: the binary and the Python distribution, as an archive or unpacked."""

from __future__ import annotations

import gzip
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar

import numpy as np

from vhl.data.images import Crop, Dataset, Flip, ImageSet
from vhl.data.sources._reading import get_command, labelled, reading
from vhl.data.sources._unpickle import RefusedError, load
from vhl.data.sources.base import Source
from vhl.errors import VHLError

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Distribution:
    """One official form: the archive, the folder it unpacks to, and the files of either part."""

    archive: str
    folder: str
    train: tuple[str, ...]
    test: str
    pickled: bool

    @property
    def places(self) -> tuple[str, str]:
        """Where it may lie in the data directory."""
        return self.archive, self.folder

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, self.test)


class CifarSource(Source):
    """What the two CIFAR sources share."""

    distributions: ClassVar[tuple[Distribution, ...]]
    class_names: ClassVar[tuple[str, ...]]
    label_bytes: ClassVar[int]
    """Labels before an image in the binary files; the last of them is the one wanted."""
    label_key: ClassVar[str]
    """The entry of the Python files that holds the labels."""

    crop: Crop = 4
    flip: Flip = True

    def read(self, data_dir: Path, seed: int) -> Dataset:
        remedy = get_command(self.name, data_dir)
        for form in self.distributions:
            archive, folder = data_dir / form.archive, data_dir / form.folder
            if archive.is_file():
                with reading(archive, remedy):
                    contents = _read_archive(archive, form.files)
                return self._decode(contents, form, archive, remedy)
            if folder.is_dir():
                return self._decode(_read_folder(folder, form.files, remedy), form, folder, remedy)
        raise VHLError(f"{data_dir / self.distributions[0].archive} is missing; {remedy}.")

    def _decode(self, contents: dict[str, bytes], form: Distribution, place: Path, remedy: str) -> Dataset:
        decoded = {}
        for file in form.files:
            with reading(place / file, remedy):
                raw = contents.pop(file)  # popped, so that only one form of the pixels stays in memory
                try:
                    pixels, labels = self._unpickle(raw) if form.pickled else self._cut(raw)
                except RefusedError as refused:
                    unsafe = f"{place / file} is not safe to open, for it asks for {refused}"
                    raise VHLError(f"{unsafe}; delete it and {remedy}.") from None
                decoded[file] = _image_set(pixels, labels, len(self.class_names))
        parts = [decoded[file] for file in form.train]
        train = ImageSet(
            np.concatenate([part.images for part in parts]), np.concatenate([part.labels for part in parts])
        )
        return Dataset(train, decoded[form.test], self.class_names)

    def _cut(self, raw: bytes) -> tuple[np.ndarray, np.ndarray]:
        record = self.label_bytes + _PIXELS
        if not raw or len(raw) % record:
            raise ValueError(f"its {len(raw)} bytes are no multiple of {record}")
        rows = np.frombuffer(raw, np.uint8).reshape(-1, record)
        return rows[:, self.label_bytes :], rows[:, self.label_bytes - 1]

    def _unpickle(self, raw: bytes) -> tuple[np.ndarray, np.ndarray]:
        entry = load(raw)
        for key in ("data", self.label_key):
            if key not in entry:
                raise ValueError(f"it has no entry {key!r}")
        return np.asarray(entry["data"]), np.asarray(entry[self.label_key])


def _image_set(pixels: np.ndarray, labels: np.ndarray, classes: int) -> ImageSet:
    """From rows of 1,024 red, 1,024 green and 1,024 blue values to height × width × channel."""
    if pixels.dtype != np.uint8 or pixels.shape[1:] != (_PIXELS,) or not len(pixels):
        raise ValueError(f"its images are not rows of {_PIXELS} bytes")
    images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return labelled(np.ascontiguousarray(images), labels, classes)


def _read_folder(folder: Path, files: tuple[str, ...], remedy: str) -> dict[str, bytes]:
    contents = {}
    for file in files:
        with reading(folder / file, remedy):
            contents[file] = (folder / file).read_bytes()
    return contents


def _read_archive(archive: Path, files: tuple[str, ...]) -> dict[str, bytes]:
    contents = {}
    with gzip.open(archive) as stream:
        with tarfile.open(fileobj=stream, mode="r|") as members:
            for member in members:
                file = PurePosixPath(member.name).name
                if file in files and member.isfile():
                    extracted = members.extractfile(member)
                    assert extracted is not None  # it is a regular file
                    contents[file] = extracted.read()
        while stream.read(1 << 20):  # to the end, where the checksum is
            pass
    for file in files:
        if file not in contents:
            raise ValueError(f"it holds no {file}")
    return contents
