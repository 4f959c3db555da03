"""What every contestant of a benchmark must do, and the data on the device that it does it with."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from vhl.chance import Purpose, generator
from vhl.data.images import Dataset
from vhl.data.sources.base import data_directory
from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.models.blueprint import Blueprint
from vhl.rounds.sampling import clients_per_round
from vhl.training.precision import choose_device

TEST_BATCH = 500
"""Images of the test set at a time."""


@dataclass(frozen=True)
class Round:
    """What one round of a contestant came to."""

    images: int
    """Natural images trained on: each of a client's own, once an epoch."""
    seconds: float
    """Wall time, evaluation included."""
    evaluation: float
    """Of that, for the evaluation."""
    accuracy: float
    """Of the server's model on the whole test set."""


@dataclass(frozen=True)
class Work:
    """FedAvg: local SGD with momentum from zero, models averaged by samples, evaluated every round."""

    images: np.ndarray
    """uint8 (N, H, W, C)."""
    labels: np.ndarray
    parts: Sequence[np.ndarray]
    """Indices of each client's images."""
    test_images: np.ndarray
    test_labels: np.ndarray
    mean: np.ndarray
    """Of each channel, in [0, 1]; subtracted before ``std`` divides."""
    std: np.ndarray
    padding: int
    """Black pixels around a training image before its random crop."""
    flip: bool
    """Whether half of the training images are flipped left to right."""
    build: Callable[[], nn.Module]
    """The network of round 1; its forward returns (features, logits)."""
    batch_size: int
    epochs: int
    lr: float
    momentum: float
    weight_decay: float
    clients_per_round: int
    seed: int
    device: torch.device
    tf32: bool

    @classmethod
    def of(cls, experiment: Experiment, data_dir: Path | None, *, tf32: bool) -> Work:
        """The work of an experiment; its learning rate stays that of round 1, for a decay costs no time."""
        training, seed = experiment.training, experiment.seeds.data
        if (experiment.objective.name, experiment.algorithm.name) != ("plain", "fedavg"):
            raise VHLError("A benchmark compares plain FedAvg; set objective=plain and algorithm=fedavg.")
        if experiment.data.cutout:
            raise VHLError("The benchmark's peers crop and flip but cut nothing out; set data.cutout=0.")
        dataset: Dataset = experiment.data.load(data_directory(data_dir), seed)
        parts = experiment.partition.assign(dataset, seed)
        height, width, channels = dataset.train.shape
        classes = len(dataset.classes)
        blueprint = Blueprint(experiment.model, classes, channels, (height, width), experiment.seeds.model)
        mean, std = experiment.data.statistics(dataset.train.images)
        return cls(
            images=dataset.train.images,
            labels=dataset.train.labels,
            parts=parts,
            test_images=dataset.test.images,
            test_labels=dataset.test.labels,
            mean=mean,
            std=std,
            padding=experiment.data.padding(dataset.train.shape[0]),
            flip=experiment.data.flip,
            build=partial(copy.deepcopy, blueprint.start()),
            batch_size=training.batch_size,
            epochs=training.epochs,
            lr=training.lr,
            momentum=training.momentum,
            weight_decay=training.weight_decay,
            clients_per_round=clients_per_round(experiment.clients_per_round, len(parts)),
            seed=experiment.seeds.sampling,
            device=choose_device(experiment.device),
            tf32=tf32,
        )

    def with_tf32(self, tf32: bool) -> Work:
        return replace(self, tf32=tf32)

    def clients(self, round_: int) -> list[int]:
        """The clients of a round (from 0): those that our engine draws too."""
        rng = generator(self.seed, Purpose.CLIENTS, round_)
        return sorted(rng.choice(len(self.parts), self.clients_per_round, replace=False).tolist())

    def network(self) -> nn.Module:
        """The network of round 1 on the device, channels last."""
        module = self.build().to(self.device)
        return module.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def measure(
        self, round_: int, train: Callable[[list[int]], None], evaluate: Callable[[], float]
    ) -> Round:
        """Time a round: ``train`` is told the clients, ``evaluate`` returns the accuracy."""
        clients = self.clients(round_)
        with self.switches():
            started = self.now()
            train(clients)
            trained = self.now()
            accuracy = evaluate()
            ended = self.now()
        images = self.epochs * sum(len(self.parts[client]) for client in clients)
        return Round(images, ended - started, ended - trained, accuracy)

    def now(self) -> float:
        """The time when the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    @contextmanager
    def switches(self) -> Iterator[None]:
        """PyTorch's switches for this work; set back, because contestants take turns in one process."""
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        before = matmul.allow_tf32
        with cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=self.tf32):
            try:
                matmul.allow_tf32 = self.tf32
                yield
            finally:
                matmul.allow_tf32 = before


class Data:
    """A work's images on its device, normalised once: a training batch is one gather, a test batch a view."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.generator = torch.Generator(work.device).manual_seed(work.seed)
        pad = (work.padding, work.padding)
        # Padded once, so that a crop is a gather; black, as if padded before normalisation.
        self.images = self._normalize(np.pad(work.images, ((0, 0), pad, pad, (0, 0))))
        self.labels = torch.from_numpy(work.labels).to(work.device)
        self.parts = [torch.from_numpy(part).to(work.device) for part in work.parts]
        self.test_images = self._normalize(work.test_images).permute(0, 3, 1, 2)
        self.test_labels = torch.from_numpy(work.test_labels).to(work.device)

    def _normalize(self, pixels: np.ndarray) -> Tensor:
        work = self.work
        mean, std = (torch.from_numpy(values).float().to(work.device) for values in (work.mean, work.std))
        return torch.from_numpy(pixels).to(work.device).float().div_(255).sub_(mean).div_(std)

    def epoch(self, client: int) -> Iterator[tuple[Tensor, Tensor]]:
        """A pass over the client's images in random order, cropped and flipped: images (B, C, H, W), labels.

        Channels come last in memory. The last batch may be smaller.
        """
        work, part = self.work, self.parts[client]
        _, height, width, _ = work.images.shape
        index = part[torch.randperm(len(part), generator=self.generator, device=work.device)]
        rows = torch.arange(height, device=work.device) + self._draw(2 * work.padding + 1, part)
        columns = torch.arange(width, device=work.device).expand(len(part), width)
        if work.flip:
            columns = torch.where(self._draw(2, part) == 1, columns.flip(1), columns)
        columns = columns + self._draw(2 * work.padding + 1, part)
        batches = (tensor.split(work.batch_size) for tensor in (index, rows, columns))
        cudnn, timing = torch.backends.cudnn, torch.backends.cudnn.benchmark
        for i, r, c in zip(*batches, strict=True):
            # cuDNN times its kernels anew for every shape: worth it for full batches, not for one odd last.
            cudnn.benchmark = timing and len(i) == work.batch_size
            images = self.images[i[:, None, None], r[:, :, None], c[:, None, :]]
            yield images.permute(0, 3, 1, 2), self.labels[i]
        cudnn.benchmark = timing

    def _draw(self, below: int, part: Tensor) -> Tensor:
        """A random whole number for each sample, as a column."""
        shape, device = (len(part), 1), self.work.device
        return torch.randint(below, shape, generator=self.generator, device=device)

    def train(self, network: nn.Module, client: int) -> None:
        """A client's local training, in place."""
        work = self.work
        optimizer = torch.optim.SGD(
            network.parameters(), work.lr, work.momentum, weight_decay=work.weight_decay, foreach=True
        )
        network.train()
        for _ in range(work.epochs):
            for images, labels in self.epoch(client):
                optimizer.zero_grad()
                cross_entropy(network(images)[1], labels).backward()
                optimizer.step()

    @torch.no_grad()
    def accuracy(self, network: nn.Module) -> float:
        """The share of test images that the network gets right."""
        network.eval()
        hits = torch.zeros((), dtype=torch.int64, device=self.work.device)
        batches = (tensor.split(TEST_BATCH) for tensor in (self.test_images, self.test_labels))
        for images, labels in zip(*batches, strict=True):
            hits += (network(images)[1].argmax(1) == labels).sum()
        return int(hits) / len(self.test_labels)
