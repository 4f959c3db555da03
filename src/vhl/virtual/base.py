"""What a virtual data generator is. It cannot see natural data: its signature has no place for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from vhl.data.images import Flip, ImageSet, ImageStream, Mean, Std
from vhl.errors import VHLError

if TYPE_CHECKING:
    import torch

Progress = Callable[[int, int], None]
"""Called with (images made so far, images in all)."""

Shape = tuple[int, int, int]
"""Height, width, channels."""


@dataclass(frozen=True)
class Workplace:
    """Where a set is made; it decides nothing about the images, but for a device's rounding."""

    device: torch.device | str = "cpu"
    data_dir: Path | None = None
    """For generators that read files; unset is the user's data directory."""
    progress: Progress | None = None


DEFAULT = Workplace()


class Generator(ImageStream):
    """Makes a labelled virtual set from a class count, an image shape and a seed, and nothing else.

    Every class is a Gaussian of its own mean and a common deviation, pushed through the generator
    (VHL, appendix C.3). A new generator is one file with a class that overrides :meth:`generate`.
    """

    room: ClassVar[str] = "generators"

    version: ClassVar[int | None] = None
    """Number of the definition, raised whenever its images change; unset, its sets are not kept on disk.

    It counts for the class that states it, not for subclasses: what they change is unknown.
    """

    classes: int | None = Field(
        None, ge=1, description="virtual classes; unset is as many as the natural data have"
    )
    per_class: int | None = Field(
        None, ge=1, description="images a class; unset is 5,000, but at most 50,000 in all"
    )
    flip: Flip = True
    mean: Mean = (0.5,)
    std: Std = (0.25,)

    def count_per_class(self, classes: int) -> int:
        return self.per_class or max(1, min(5_000, 50_000 // classes))

    def known_classes(self, seed: int, place: Workplace = DEFAULT) -> int | None:
        """How many classes there are to choose from; none where any number can be made."""
        return None

    def generate(
        self, classes: int, per_class: int, shape: Shape, seed: int, place: Workplace = DEFAULT
    ) -> ImageSet:
        """Make ``classes`` × ``per_class`` images of ``shape``, in class order.

        All random numbers are drawn on the CPU from ``seed``, so that devices differ by rounding at most.
        """
        raise NotImplementedError

    def held_out(
        self, classes: int, per_class: int, shape: Shape, seed: int, place: Workplace = DEFAULT
    ) -> ImageSet:
        """Images of the same classes that are not among those of :meth:`generate`."""
        raise VHLError(
            f"virtual = {self.name} has no images beside its own: it does not say how to draw more."
        )


@dataclass(frozen=True)
class Order:
    """Which images a generator is to draw, and the random numbers that decide them."""

    classes: int
    per_class: int
    shape: Shape
    fixed: np.random.SeedSequence
    """For what all samples of a class share, as its mean."""
    samples: np.random.SeedSequence
    """For what tells samples of a class apart."""
    place: Workplace

    @property
    def labels(self) -> np.ndarray:
        """The images' labels, in class order."""
        return np.repeat(np.arange(self.classes), self.per_class)


class DrawnGenerator(Generator):
    """A generator whose classes come from one stream of random numbers, and their samples from another.

    The same classes with other samples are its held-out images. A new one overrides :meth:`draw` alone.
    """

    def generate(
        self, classes: int, per_class: int, shape: Shape, seed: int, place: Workplace = DEFAULT
    ) -> ImageSet:
        fixed, samples, _ = np.random.SeedSequence(seed).spawn(3)
        return self.draw(Order(classes, per_class, shape, fixed, samples, place))

    def held_out(
        self, classes: int, per_class: int, shape: Shape, seed: int, place: Workplace = DEFAULT
    ) -> ImageSet:
        fixed, _, samples = np.random.SeedSequence(seed).spawn(3)
        return self.draw(Order(classes, per_class, shape, fixed, samples, place))

    def draw(self, order: Order) -> ImageSet:
        """The images of an order, in the order of its labels."""
        raise NotImplementedError
