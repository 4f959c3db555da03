"""An experiment made concrete: its data on the device, its clients, its virtual set and its network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vhl.data.sources.base import data_directory
from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.models.cost import MultiplyAdds
from vhl.models.files import head_names, load_start
from vhl.models.vectors import FlatModel, Layout
from vhl.rounds.checks import batch_norm_notes, check_mosaic, check_share, is_linear, mosaic_notes
from vhl.rounds.evaluation import Evaluator, moments
from vhl.rounds.workshop import Workshop
from vhl.training.client_data import NaturalData, VirtualData
from vhl.training.lanes import Lanes
from vhl.training.precision import Numerics
from vhl.training.recipe import Note
from vhl.training.stream import Stream
from vhl.training.task import Task
from vhl.virtual.base import Progress, Workplace
from vhl.virtual.sets import virtual_set


def choose_device(wanted: str) -> torch.device:
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise VHLError(f"device = {wanted!r} cannot be trained on; choose auto, cpu or cuda.")
    gpus = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise VHLError(
            f"device = {wanted!r}, but PyTorch sees {gpus} GPUs; choose device=cpu or install a CUDA build."
        )
    return device


@dataclass(frozen=True)
class Shape:
    """What the network is made for."""

    classes: int
    outputs: int
    channels: int
    size: tuple[int, int]
    features: dict[str, int]
    """Length of each tap."""
    multiply_adds: int
    """Of one image, forward."""


class Problem:
    """Everything a run needs that does not change from round to round."""

    def __init__(
        self,
        experiment: Experiment,
        data_dir: Path | str | None = None,
        progress: Progress | None = None,
        workshop: Workshop | None = None,
        natural: NaturalData | None = None,
    ) -> None:
        """``workshop`` is where other experiments may have the same data.

        Without ``natural`` the experiment's own data are read.
        """
        self.experiment = experiment
        self.device = choose_device(experiment.device)
        self.numerics = Numerics.choose(experiment.engine, self.device)
        self.workshop = workshop or Workshop()
        directory = data_directory(data_dir)
        self.natural = natural or self._read(directory)
        self.dataset, self.parts = self.natural.dataset, self.natural.parts
        self.virtual_classes = experiment.virtual.classes or self.classes
        self.shape = self.measure(experiment.objective.outputs(self.classes, self.virtual_classes))
        self.virtual = self._virtual(directory, progress) if experiment.objective.uses_virtual else None
        self.shared = self._shared()
        self._check_calibration()
        self.distillation = self._distillation(directory, progress)
        """What an algorithm distils on; nothing where that is fresh noise, or it distils not at all."""

    def _distillation(self, directory: Path, progress: Progress | None) -> Stream | None:
        experiment, settings = self.experiment, self.experiment.algorithm.distillation
        if settings is not None and self.natural.validation is None:
            raise VHLError(
                f"algorithm = {experiment.algorithm.name} chooses a model by validation images: set "
                "data.validation, as to 0.1."
            )
        if settings is None or settings.images is None:
            return None
        images, shape, seed = settings.images, self.dataset.train.shape, experiment.seeds.data
        known = images.known_classes(seed, Workplace(data_dir=directory))
        classes = images.classes or known or self.classes  # labels are dropped: whatever there is helps
        made = virtual_set(images, classes, shape, seed, directory, self.device, progress)
        # Normalised as what the models were trained on, whatever is drawn in them.
        return Stream(made, images, self.natural.statistics, self.device, dtype=self.numerics.dtype)

    def _read(self, directory: Path) -> NaturalData:
        experiment, numerics = self.experiment, self.numerics
        return self.workshop.natural.get(
            lambda: NaturalData.read(experiment, directory, numerics),
            experiment.data,
            experiment.partition,
            experiment.seeds.data,
            directory,
            numerics.device,
            numerics.dtype,
        )

    def _virtual(self, directory: Path, progress: Progress | None) -> VirtualData:
        experiment, numerics, classes = self.experiment, self.numerics, self.virtual_classes
        generator, objective, seed = experiment.virtual, experiment.objective, experiment.seeds.data
        shape = objective.virtual_shape(self.dataset.train.shape)

        def make() -> VirtualData:
            images = virtual_set(generator, classes, shape, seed, directory, self.device, progress)
            return VirtualData(images, generator, objective, numerics)

        words: tuple[Any, ...] = (generator, classes, shape, seed, directory, numerics.device, numerics.dtype)
        words += (objective.tiles, objective.tiles_of_one_class)
        return self.workshop.virtual.get(make, *words)

    @property
    def classes(self) -> int:
        return len(self.dataset.classes)

    @property
    def clients(self) -> int:
        return len(self.parts)

    def build(self, outputs: int) -> nn.Module:
        """The initial network; its weights depend on the model's seed alone."""
        height, width, channels = self.dataset.train.shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.experiment.seeds.model)
            return self.experiment.model.build(outputs, channels, (height, width))

    def network(self, outputs: int) -> str:
        """What :meth:`build` builds but for its weights, in words."""
        words = [self.experiment.model.model_dump_json(), str(self.dataset.train.shape), str(outputs)]
        if self._has_other_tensors:
            words.append(f"seed {self.experiment.seeds.model}")
        return " ".join(words)

    @cached_property
    def _has_other_tensors(self) -> bool:
        """Whether networks of two seeds may differ beyond what is loaded into them, as in whole numbers."""
        module = self.build(self.shape.outputs)
        layout = Layout(module)
        loaded = {segment.name for segment in (*layout.parameters, *layout.buffers)}
        return any(name not in loaded for name, _ in module.named_buffers())

    def initial(self) -> nn.Module:
        """The network that round 1 starts from, before any pretraining."""
        module = self.build(self.shape.outputs)
        if self.experiment.model.start is not None:
            load_start(module, Path(self.experiment.model.start), self.head)
        return module

    @cached_property
    def head(self) -> tuple[str, ...]:
        """Names of the classifier's tensors."""
        with torch.device("meta"):
            return head_names(self.build)

    def linear_head(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The classifier's weight and bias among a model's tensors."""
        parts = {tensors[name].dim(): tensors[name] for name in self.head}
        if set(parts) != {1, 2} or len(self.head) != 2:
            raise VHLError(
                f"A linear classifier with a bias is needed here; {self.experiment.model.name} has "
                f"{', '.join(self.head)}."
            )
        return parts[2], parts[1]

    def _check_calibration(self) -> None:
        """A classifier that cannot be retrained is an error now, not after the last round."""
        experiment = self.experiment
        if experiment.algorithm.calibration is None:
            return
        module = self.build(self.shape.outputs).eval()
        head = self.linear_head(module.state_dict())
        height, width = self.shape.size
        image = torch.linspace(-1, 1, self.shape.channels * height * width)
        with torch.no_grad():
            features, logits = module(image.view(1, -1, height, width))
            linear = is_linear(features["last"], logits, head)
        if not linear:
            raise VHLError(
                f"algorithm = {experiment.algorithm.name} retrains a linear classifier on the features "
                f"'last'; that of {experiment.model.name} is none."
            )

    def measure(self, outputs: int) -> Shape:
        """Run one image through a network with this many outputs."""
        height, width, channels = self.dataset.train.shape
        module = self.build(outputs).eval()
        with torch.no_grad(), MultiplyAdds(module) as counter:
            result = module(torch.zeros(1, channels, height, width))
        features, logits = _check_output(result, outputs, self.experiment.model.name)
        self._check_tap(features)
        check_mosaic(self.experiment, module, (height, width), features)
        check_share(self.experiment, module)
        lengths = {tap: feature[0].numel() for tap, feature in features.items()}
        return Shape(self.classes, logits.shape[1], channels, (height, width), lengths, max(1, counter.total))

    def _check_tap(self, features: dict[str, Tensor]) -> None:
        tap = getattr(self.experiment.objective, "tap", "last")
        if tap not in features:
            raise VHLError(
                f"objective.tap = {tap!r}: {self.experiment.model.name} has the taps {', '.join(features)}."
            )

    def _shared(self) -> dict[str, Tensor]:
        arrays = self.experiment.objective.shared(
            self.classes, self.shape.features, self.experiment.seeds.data
        )
        return {name: torch.from_numpy(array).to(self.device) for name, array in arrays.items()}

    def task(self) -> Task:
        """What the clients train."""
        experiment = self.experiment
        return Task(
            build=lambda: self.build(self.shape.outputs),
            network=self.network(self.shape.outputs),
            numerics=self.numerics,
            natural=self.natural.train,
            virtual=None if self.virtual is None else self.virtual.train,
            classes=self.classes,
            features=self.shape.features,
            objective=experiment.objective,
            algorithm=experiment.algorithm,
            training=experiment.training,
            seed=experiment.seeds.batches,
            longest=max(map(len, self.parts)),
            shared=self.shared,
        )

    def lanes(self, on_note: Note = lambda note: None) -> Lanes:
        """Where clients train."""
        return self.workshop.lanes(self.experiment.engine, self.numerics, on_note)

    def evaluator(self, model: FlatModel, capture: bool) -> Evaluator:
        """Who counts a model's predictions on test and validation images."""
        sets = {"test": self.natural.test}
        if self.natural.validation is not None:
            sets["validation"] = self.natural.validation
        return Evaluator(model, self.numerics, sets, self.classes, capture)

    def moments(self, model: FlatModel) -> dict[str, Tensor]:
        """Of the model's features of all clients' images; see :func:`vhl.rounds.evaluation.moments`."""
        index = torch.from_numpy(np.concatenate(self.parts)).to(self.device)
        return moments(model, self.natural.train.plain(), index, self.classes, self.numerics)

    @property
    def shows_images(self) -> bool:
        """Whether models can be shown test images here: where data lie elsewhere, they are counted there."""
        return len(self.natural.test) > 0

    def describe_data(self) -> dict[str, Any]:
        """What a run folder says of the data."""
        mean, std = self.natural.statistics
        return {
            "classes": list(self.dataset.classes),
            "sites": list(self.dataset.sites),
            "channels": self.shape.channels,
            "size": list(self.shape.size),
            "outputs": self.shape.outputs,
            "mean": mean.tolist(),
            "std": std.tolist(),
            "virtual_classes": self.virtual_classes if self.virtual is not None else 0,
            "test_samples": len(self.dataset.test),
            "fingerprint": self.dataset.train.fingerprint(),
            "counts": self.natural.counts.tolist(),
            "heterogeneity": self.natural.heterogeneity,
        }

    @cached_property
    def compute(self) -> float:
        """Multiply-adds of a training step relative to plain FedAvg's; a pass back costs two forward."""
        plain = self.measure(self.classes).multiply_adds
        natural = self.experiment.training.batch_size
        references = len(self.experiment.algorithm.references) * natural / 3
        rows = natural + self.experiment.objective.virtual_images(natural) + references
        return rows * self.shape.multiply_adds / (natural * plain)

    @property
    def ignores_sites(self) -> bool:
        """Whether clients are others than the sites that the data name."""
        return bool(self.dataset.sites) and self.experiment.partition.name != "given"

    def notes(self) -> list[str]:
        """Sentences a user should read before training."""
        notes = [*self.dataset.remarks, *self.experiment.algorithm.notes(self.experiment.training)]
        if self.experiment.objective.virtual_rows(1) and self.virtual_classes != self.classes:
            notes.append(
                f"{self.virtual_classes} virtual and {self.classes} natural classes: a class that exists on "
                "one side only is not calibrated."
            )
        notes += mosaic_notes(self.experiment)
        notes += batch_norm_notes(self.experiment, self.build(self.shape.outputs))
        spelt = Counter(name.casefold() for name in self.dataset.classes)
        twins = [name for name in self.dataset.classes if spelt[name.casefold()] > 1]
        if twins:
            notes.append(f"Classes {', '.join(twins)} differ in capitals alone, and count as different.")
        held = zip(self.dataset.classes, self.natural.counts.sum(0), strict=True)
        held_by_nobody = [name for name, count in held if not count]
        if held_by_nobody:
            notes.append(f"No client holds a training image of class {', '.join(held_by_nobody)}.")
        training, partition = self.experiment.training, self.experiment.partition.name
        rounds = self.experiment.rounds
        for option, after in training.not_reached(rounds).items():
            notes.append(f"training.{option} = {after} is never reached in {rounds} rounds.")
        if partition == "centralized" and training.momentum and not training.keep_momentum:
            notes.append("Momentum restarts every round; training.keep_momentum=true is ordinary training.")
        if self.ignores_sites:
            notes.append(
                f"The data name {len(self.dataset.sites)} sites; partition=given makes them the clients."
            )
        return notes


def _check_output(result: object, outputs: int, model: str) -> tuple[dict[str, Tensor], Tensor]:
    match result:
        case (dict() as features, Tensor() as logits) if "last" in features and logits.shape == (1, outputs):
            return features, logits
    raise VHLError(
        f"model {model}: forward must return (features by tap, logits) with a tap 'last' and {outputs} "
        "logits; build(classes, channels, size) decides how many."
    )
