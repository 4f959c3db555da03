"""What sites say of their data, and what the server makes of it: the terms that all train on."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from vhl.config.registry import installed_only
from vhl.data.images import Dataset, ImageSet
from vhl.data.sources.base import set_channels
from vhl.deploy.orders import Said
from vhl.deploy.wire import RefusedError
from vhl.errors import VHLError
from vhl.experiment import Experiment

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""What a site may be called: its name becomes part of file names."""
_MOST_IMAGES = 10**9
Counts = list[Annotated[int, Field(ge=0)]]


def check_name(name: str) -> str:
    """A site's name, if it can be that of a file, a setting and a word on a command line."""
    if not NAME.fullmatch(name):
        raise VHLError(
            f"{name!r} cannot be the name of a site: letters, digits, '.', '_' and '-' can, at most 64."
        )
    return name


class Facts(Said):
    """What a site says of its data: counts and sums, no image."""

    name: str = Field(pattern=f"^{NAME.pattern}$")
    classes: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(
        min_length=1, max_length=10_000
    )
    train: Counts
    """Images of each of its classes."""
    test: Counts
    validation: Counts
    shape: list[int] = Field(min_length=3, max_length=3)
    sums: Counts
    """Of the training images' values (0 to 255), by channel."""
    squares: Counts

    @model_validator(mode="after")
    def _fits(self) -> Facts:
        height, width, channels = self.shape
        pixels = sum(self.train) * height * width
        fits = (
            len(set(self.classes)) == len(self.classes)
            and {len(self.train), len(self.test), len(self.validation)} == {len(self.classes)}
            and sum(self.train) > 0
            and 4 <= height <= 4096
            and 4 <= width <= 4096
            and channels in (1, 3)
            and len(self.sums) == len(self.squares) == channels
            and all(
                total**2 <= squares * pixels and squares <= 255 * total <= 255**2 * pixels
                for total, squares in zip(self.sums, self.squares, strict=True)
            )
            and max(sum(self.train), sum(self.test), sum(self.validation)) <= _MOST_IMAGES
        )
        if not fits:
            raise ValueError("its numbers do not fit each other")
        return self

    @classmethod
    def of(cls, name: str, dataset: Dataset, *, sums: bool = True) -> Facts:
        """Without ``sums``, which serve the common mean and deviation, they are 0."""

        def count(images: ImageSet | None) -> list[int]:
            labels = np.zeros(0, np.int64) if images is None else images.labels
            return [int(own) for own in np.bincount(labels, minlength=len(dataset.classes))]

        channels = range(dataset.train.shape[2])
        values = [np.bincount(dataset.train.images[..., c].ravel(), minlength=256) for c in channels]
        levels = np.arange(256) if sums else np.zeros(256, int)
        return cls(
            name=name,
            classes=list(dataset.classes),
            train=count(dataset.train),
            test=count(dataset.test),
            validation=count(dataset.validation),
            shape=list(dataset.train.shape),
            sums=[int(levels @ own) for own in values],
            squares=[int(levels**2 @ own) for own in values],
        )


@dataclass(frozen=True)
class Terms:
    """What the server and all sites agree on; it comes with every message."""

    run: str
    """A name that no other run has."""
    experiment: Experiment
    sites: tuple[str, ...]
    """In the order of their numbers, in which sums run."""
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    virtual: str | None = None
    """SHA-256 of the virtual images, where there are any."""

    def table(self) -> dict[str, Any]:
        return {**vars(self), "experiment": self.experiment.table()}

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Terms:
        """What a server sent, and this package knows all parts of."""
        try:
            lists = {k: tuple(values[k]) for k in ("sites", "classes", "shape", "mean", "std")}
            if not NAME.fullmatch(values["run"]):
                raise RefusedError("the run has no name")
            return cls(values["run"], read_experiment(values), **lists, virtual=values["virtual"])
        except (KeyError, TypeError) as error:
            raise RefusedError("the terms are not complete") from error

    @property
    def statistics(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self.mean), np.array(self.std)

    def fit(self, dataset: Dataset) -> Dataset:
        """A site's data in these terms: labels by the common list of classes, channels as agreed."""
        numbers = {name: number for number, name in enumerate(self.classes)}
        unknown = [name for name in dataset.classes if name not in numbers]
        if unknown:
            raise VHLError(f"Class {', '.join(unknown)} is not among those agreed on: {list(self.classes)}.")
        labels = np.array([numbers[name] for name in dataset.classes], np.int64)

        def own(images: ImageSet) -> ImageSet:
            fitted = set_channels(images.images, self.shape[2])
            if fitted.shape[1:] != self.shape:
                raise VHLError(f"Images are {fitted.shape[1:]}, and {self.shape} was agreed on.")
            return ImageSet(fitted, labels[images.labels])

        validation = None if dataset.validation is None else own(dataset.validation)
        return Dataset(own(dataset.train), own(dataset.test), self.classes, self.sites, validation)


def read_experiment(values: Mapping[str, Any]) -> Experiment:
    """An experiment that came by network, made of parts that are installed here and of nothing else.

    A part called ``FILE.py:CLASS`` would be code that nobody at this site has agreed to run.
    """
    table = values.get("experiment")
    if not isinstance(table, dict):
        raise RefusedError("no experiment")
    with installed_only():
        return Experiment(**table)


def agree(
    run: str, experiment: Experiment, facts: Sequence[Facts], classes: Sequence[str] = ()
) -> tuple[Terms, np.ndarray]:
    """Terms from what the sites say, and how many images of each class each has (sites × classes).

    Mean and deviation are those of all training images together, from their sums, where the experiment
    leaves them open.
    """
    facts = sorted(facts, key=lambda own: own.name)
    agreed = tuple(classes) or _common_classes([own.classes for own in facts])
    if len(set(agreed)) < len(agreed):
        raise VHLError(f"A class stands twice in the list of classes: {', '.join(agreed)}.")
    strangers = [f"{c} of {own.name}" for own in facts for c in own.classes if c not in agreed]
    if strangers:
        raise VHLError(f"These classes are not in the list of classes: {', '.join(strangers)}.")
    sizes = sorted({(own.shape[0], own.shape[1]) for own in facts})
    if len(sizes) > 1:
        raise VHLError(f"Sites have images of different sizes, {sizes}; set data.size.")
    channels = experiment.data.channels or max(own.shape[2] for own in facts)
    mean, std = _statistics(facts, channels)
    mean = mean if (given := experiment.data.spread("mean", channels)) is None else given
    std = std if (given := experiment.data.spread("std", channels)) is None else given
    terms = Terms(
        run,
        experiment,
        sites=tuple(own.name for own in facts),
        classes=agreed,
        shape=(*sizes[0], channels),
        mean=tuple(mean.tolist()),
        std=tuple(std.tolist()),
    )
    held = [dict(zip(own.classes, own.train, strict=True)) for own in facts]
    return terms, np.array([[own.get(name, 0) for name in agreed] for own in held])


def _common_classes(lists: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The one list that all have, or all names in order (of numbers, where they are numbers)."""
    if all(own == lists[0] for own in lists):
        return tuple(lists[0])
    names = {name for own in lists for name in own}
    return tuple(sorted(names, key=lambda n: (not n.isdecimal(), int(n) if n.isdecimal() else 0, n)))


def _statistics(facts: Sequence[Facts], channels: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation in [0, 1]; sums are whole numbers, so that nothing is lost on the way."""
    pixels = sum(sum(own.train) * own.shape[0] * own.shape[1] for own in facts)
    means, deviations = [], []
    for channel in range(channels):
        total = sum(own.sums[min(channel, own.shape[2] - 1)] for own in facts)
        squares = sum(own.squares[min(channel, own.shape[2] - 1)] for own in facts)
        means.append(total / pixels / 255)
        # Whole numbers up to here: the difference of two large ones keeps its digits.
        deviations.append(max(math.sqrt(squares * pixels - total**2) / pixels / 255, 1e-6))
    return np.array(means), np.array(deviations)
