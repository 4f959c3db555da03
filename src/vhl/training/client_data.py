"""What clients train on, on the device."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vhl.data.images import Dataset, ImageSet, ImageStream
from vhl.data.partitions.base import count_matrix, heterogeneity
from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.objectives.base import Objective
from vhl.training.mosaic import MosaicStream
from vhl.training.precision import Numerics
from vhl.training.stream import Stream
from vhl.virtual.base import Generator


class NaturalData:
    """The natural images, dealt out to clients."""

    def __init__(
        self,
        dataset: Dataset,
        parts: list[np.ndarray],
        counts: np.ndarray,
        settings: ImageStream,
        statistics: tuple[np.ndarray, np.ndarray],
        numerics: Numerics,
    ) -> None:
        """``parts`` are each client's training images, ``counts`` those of each class (clients × classes)."""
        self.dataset, self.parts, self.counts, self.statistics = dataset, parts, counts, statistics
        self.heterogeneity = heterogeneity(counts)

        def stream(images: ImageSet, augment: bool = False) -> Stream:
            return Stream(
                images, settings, statistics, numerics.device, augment=augment, dtype=numerics.dtype
            )

        self.train = stream(dataset.train, augment=True)
        self.test = stream(dataset.test)
        self.validation = None if dataset.validation is None else stream(dataset.validation)

    @classmethod
    def read(cls, experiment: Experiment, directory: Path, numerics: Numerics) -> NaturalData:
        """The experiment's own data."""
        source, seed = experiment.data, experiment.seeds.data
        dataset = source.load(directory, seed)
        parts = experiment.partition.assign(dataset, seed)
        if not all(len(part) for part in parts):
            raise VHLError(
                f"partition = {experiment.partition.name} leaves a client without images; change it."
            )
        counts = count_matrix(dataset.train.labels, parts, len(dataset.classes))
        return cls(dataset, parts, counts, source, source.statistics(dataset.train.images), numerics)


class VirtualData:
    """The virtual images."""

    def __init__(
        self, images: ImageSet, generator: Generator, objective: Objective, numerics: Numerics
    ) -> None:
        """``objective`` says whether clients train on mosaics of them; they have its ``virtual_shape``."""
        device, dtype = numerics.device, numerics.dtype
        self.images = images
        statistics = generator.statistics(images.images)
        if objective.tiles == 1:
            self.train = Stream(images, generator, statistics, device, dtype=dtype)
        else:
            self.train = MosaicStream(
                images,
                generator,
                statistics,
                device,
                tiles=objective.tiles,
                of_one_class=objective.tiles_of_one_class,
                dtype=dtype,
            )
        self.plain = Stream(images, generator, statistics, device, augment=False, dtype=dtype)
