"""Whether a source's files can be read, whether they are the official ones, and which sources are there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vhl.config.listing import available
from vhl.config.registry import build
from vhl.data.images import Dataset
from vhl.data.sources._official import Fingerprint
from vhl.data.sources.base import Source
from vhl.errors import VHLError

State = Literal["present", "absent", "built in", "your own"]


@dataclass(frozen=True)
class Report:
    """What ``vhl data check`` found, with a sentence; ``official`` is unset where it cannot be told."""

    name: str
    readable: bool
    official: bool | None
    remark: str
    train: int = 0
    test: int = 0
    classes: int = 0
    shape: tuple[int, int, int] | None = None


def check(name: str, data_dir: Path) -> Report:
    """Read all files of a source (also ``folder:PATH``) and compare them with the official ones."""
    source = build(Source, "source", name)
    try:
        dataset = source.read(data_dir, seed=0)
    except VHLError as error:
        return Report(name, readable=False, official=None, remark=str(error))
    official, remark = _compare(source, dataset, data_dir)
    counts = len(dataset.train), len(dataset.test), len(dataset.classes)
    return Report(name, True, official, " ".join([remark, *dataset.remarks]), *counts, dataset.train.shape)


def _compare(source: Source, dataset: Dataset, data_dir: Path) -> tuple[bool | None, str]:
    if source.fingerprint is not None:
        return _compare_content(source.fingerprint, Fingerprint.of(dataset))
    if not source.official:
        return None, "There is no official version to compare with."
    absent = [file.path for file in source.official if not (data_dir / file.path).is_file()]
    if absent:
        return (
            None,
            f"Only {' and '.join(absent)} could be compared with the official version, and is absent.",
        )
    wrong = [file.path for file in source.official if not file.is_at(data_dir / file.path)]
    if wrong:
        return False, f"Not the official bytes: {' and '.join(wrong)}."
    return True, "All files are the official ones, byte for byte."


def _compare_content(official: Fingerprint, found: Fingerprint) -> tuple[bool, str]:
    wrong = [part for part in ("train", "test") if getattr(found, part) != getattr(official, part)]
    if wrong:
        return False, f"Not the official images or labels: {' and '.join(wrong)}."
    return True, "All images and labels are the official ones, the training images in their order."


@dataclass(frozen=True)
class Listed:
    """A source as ``vhl data list`` shows it, with its bytes in the data directory."""

    name: str
    summary: str
    state: State
    size: int


def listing(data_dir: Path) -> list[Listed]:
    """Every source, and whether the data directory holds its files."""
    listed = []
    for name, entry in available("sources").items():
        source: type[Source] = entry.load()
        size = sum(_size(data_dir / place) for place in source.places)
        listed.append(Listed(name, entry.summary, _state(source, size), size))
    return listed


def _state(source: type[Source], size: int) -> State:
    if source.places:
        return "present" if size else "absent"
    return "your own" if source.primary else "built in"


def _size(place: Path) -> int:
    if place.is_dir():
        return sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    return place.stat().st_size if place.exists() else 0
