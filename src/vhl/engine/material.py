"""What clients train on, on the device."""

from __future__ import annotations

from pathlib import Path

from vhl.data.images import ImageSet
from vhl.data.partitions.base import count_matrix, heterogeneity
from vhl.engine.numerics import Numerics
from vhl.engine.stream import Stream
from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.virtual.base import Progress
from vhl.virtual.sets import virtual_set


class NaturalData:
    """The natural images, dealt out to clients."""

    def __init__(self, experiment: Experiment, directory: Path, numerics: Numerics) -> None:
        source, device, dtype = experiment.data, numerics.device, numerics.dtype
        self.dataset = source.load(directory, experiment.seeds.data)
        self.parts = experiment.partition.assign(self.dataset, experiment.seeds.data)
        if not all(len(part) for part in self.parts):
            raise VHLError(
                f"partition = {experiment.partition.name} leaves a client without images; change it."
            )
        self.counts = count_matrix(self.dataset.train.labels, self.parts, len(self.dataset.classes))
        self.heterogeneity = heterogeneity(self.counts)
        self.statistics = source.statistics(self.dataset.train.images)

        def plain(images: ImageSet) -> Stream:
            return Stream(images, source, self.statistics, device, augment=False, dtype=dtype)

        self.train = Stream(self.dataset.train, source, self.statistics, device, dtype=dtype)
        self.test = plain(self.dataset.test)
        validation = self.dataset.validation
        self.validation = None if validation is None else plain(validation)


class VirtualData:
    """The virtual images."""

    def __init__(
        self,
        experiment: Experiment,
        classes: int,
        shape: tuple[int, int, int],
        directory: Path,
        numerics: Numerics,
        progress: Progress | None,
    ) -> None:
        generator, seed = experiment.virtual, experiment.seeds.data
        device, dtype = numerics.device, numerics.dtype
        self.images = virtual_set(generator, classes, shape, seed, directory, device, progress)
        statistics = generator.statistics(self.images.images)
        self.train = Stream(self.images, generator, statistics, device, dtype=dtype)
        self.plain = Stream(self.images, generator, statistics, device, augment=False, dtype=dtype)
