"""Any labelled dataset as virtual data."""

from __future__ import annotations

import sys
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field, SerializeAsAny

from vhl.config.registry import part
from vhl.data.images import ImageSet
from vhl.data.sources.base import Source, data_directory, set_channels
from vhl.errors import VHLError
from vhl.virtual._pixels import assemble, resize
from vhl.virtual.base import DEFAULT, Generator, Shape, Workplace

_CHUNK = 500  # images at a time: bounds memory


class LabelledDataset(Generator):
    """The training images of a labelled dataset, its first classes, resized: `dataset:SOURCE`.

    Classes keep the sizes they have, so the virtual labels are balanced only where the dataset's are or
    ``per_class`` is within every class. The nested source's own augmentation is not used, the generator's is.
    """

    primary: ClassVar[str | None] = "source"

    source: Annotated[SerializeAsAny[Source], part(Source, "virtual.source")] = Field(
        description="the dataset: see `vhl help data`"
    )
    per_class: int | None = Field(
        None,
        ge=1,
        description="images a class at most, chosen by the seed; unset is all of them, balanced or not",
    )

    def count_per_class(self, classes: int) -> int:
        return self.per_class or sys.maxsize  # a bound: each class has what the dataset has

    def known_classes(self, seed: int, place: Workplace = DEFAULT) -> int:
        return len(self.source.load(data_directory(place.data_dir), seed).classes)

    def generate(
        self, classes: int, per_class: int, shape: Shape, seed: int, place: Workplace = DEFAULT
    ) -> ImageSet:
        return self._take("train", classes, per_class, shape, seed, place)

    def held_out(
        self, classes: int, per_class: int, shape: Shape, seed: int, place: Workplace = DEFAULT
    ) -> ImageSet:
        """The dataset's test images."""
        return self._take("test", classes, per_class, shape, seed, place)

    def _take(
        self, part: str, classes: int, per_class: int, shape: Shape, seed: int, place: Workplace
    ) -> ImageSet:
        """Some images of the dataset's ``train`` or ``test``, resized."""
        dataset = self.source.load(data_directory(place.data_dir), seed)
        images, known = getattr(dataset, part), len(dataset.classes)
        if known < classes:
            raise VHLError(
                f"virtual.source = {self.source.name} has {known} classes, fewer than the {classes} virtual "
                f"classes asked for; choose another source or set virtual.classes = {known}."
            )
        chosen = _choose(images.labels, classes, per_class, np.random.default_rng(seed))

        def make(span: slice) -> torch.Tensor:
            pixels = set_channels(images.images[chosen[span]], shape[2])
            return resize(torch.from_numpy(pixels).to(place.device).permute(0, 3, 1, 2) / 255, *shape[:2])

        return assemble(images.labels[chosen], shape, make, chunk=_CHUNK, progress=place.progress)


def _choose(labels: np.ndarray, classes: int, per_class: int, rng: np.random.Generator) -> np.ndarray:
    """Indices of up to ``per_class`` images of each of the first ``classes`` classes, in class order."""
    order = rng.permutation(len(labels))
    return np.concatenate([order[labels[order] == label][:per_class] for label in range(classes)])
