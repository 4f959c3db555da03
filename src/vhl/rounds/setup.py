"""An experiment made concrete: what is set up once and does not change from round to round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vhl.data.images import ImageSet
from vhl.data.partitions.base import heterogeneity
from vhl.experiment import Experiment
from vhl.models.blueprint import Blueprint
from vhl.models.layers.norm import fuse
from vhl.models.vectors import FlatModel
from vhl.rounds.checks import check_network
from vhl.rounds.datasheet import DataSheet
from vhl.training.client_data import VirtualData
from vhl.training.precision import Precision
from vhl.training.streams import Stream


@dataclass(frozen=True)
class Setup:
    """What server and clients of a run have in common, and the images that the server may look at."""

    experiment: Experiment
    precision: Precision
    data: DataSheet
    blueprint: Blueprint
    virtual: VirtualData | None
    shared: Mapping[str, Tensor]
    """Constants of the objective."""
    directory: Path
    """Where datasets lie."""
    test: Stream | None = None
    """Unset where the sites' held-out images are counted instead."""
    validation: Stream | None = None

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        precision: Precision,
        data: DataSheet,
        directory: Path,
        virtual: VirtualData | None,
        *,
        test: ImageSet | None = None,
        validation: ImageSet | None = None,
    ) -> Setup:
        """Refuses what cannot work before anything is trained."""
        classes, objective = len(data.classes), experiment.objective
        height, width, channels = data.shape
        outputs = objective.outputs(classes, experiment.virtual.classes or classes)
        blueprint = Blueprint(experiment.model, outputs, channels, (height, width), experiment.seeds.model)
        check_network(experiment, blueprint)
        constants = objective.shared(classes, blueprint.known.lengths, experiment.seeds.data)
        shared = {name: torch.from_numpy(array).to(precision.device) for name, array in constants.items()}

        def stream(images: ImageSet | None) -> Stream | None:
            if images is None:
                return None
            settings, device = experiment.data, precision.device
            return Stream(images, settings, data.statistics, device, augment=False, dtype=precision.dtype)

        sets = {"test": stream(test), "validation": stream(validation)}
        return cls(experiment, precision, data, blueprint, virtual, shared, directory, **sets)

    @property
    def classes(self) -> int:
        return len(self.data.classes)

    @property
    def virtual_classes(self) -> int:
        return self.experiment.virtual.classes or self.classes

    @property
    def clients(self) -> int:
        return len(self.data.counts)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Training images of each client."""
        return tuple(self.data.counts.sum(1).tolist())

    def model(self, *, kernels: bool = False, start: bool = False) -> FlatModel:
        """A network of this run, bound to vectors of its own; with ``start`` as training starts from it."""
        module = self.blueprint.start() if start else self.blueprint.build()
        if kernels:
            fuse(module)
        precision = self.precision
        return FlatModel(module, precision.device, precision.dtype, precision.compute_dtype)

    @cached_property
    def compute(self) -> float:
        """Multiply-adds of a training step relative to plain FedAvg's; a pass back costs two forward."""
        plain = self.blueprint.probe(self.classes).multiply_adds
        natural = self.experiment.training.batch_size
        references = len(self.experiment.algorithm.references) * natural / 3
        virtual = self.experiment.objective.virtual_images(natural)
        rows = natural + (0 if virtual is None else virtual.places) + references
        return rows * self.blueprint.known.multiply_adds / (natural * plain)

    def describe_data(self) -> dict[str, Any]:
        """What a run folder says of the data."""
        mean, std = self.data.statistics
        found = {
            "classes": list(self.data.classes),
            "sites": list(self.data.sites),
            "channels": self.blueprint.channels,
            "size": list(self.blueprint.size),
            "outputs": self.blueprint.outputs,
            "mean": mean.tolist(),
            "std": std.tolist(),
            "virtual_classes": self.virtual_classes if self.virtual is not None else 0,
            "test_samples": self.data.test_samples,
            "fingerprint": self.data.fingerprint,
            "counts": self.data.counts.tolist(),
            "heterogeneity": heterogeneity(self.data.counts),
        }
        return {**found, "deployment": dict(self.data.deployment)} if self.data.deployment else found
