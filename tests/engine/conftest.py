from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from vhl.algorithms.fedavg import FedAvg
from vhl.data.images import ImageSet, ImageStream
from vhl.engine.numerics import Numerics
from vhl.engine.stream import Stream
from vhl.engine.task import Task
from vhl.experiment import Training
from vhl.objectives.plain import Plain

CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def make_stream() -> Callable[..., Stream]:
    """A stream of pixels / 255, without augmentation."""

    def make(images: np.ndarray, labels: Any) -> Stream:
        own = ImageSet(images, np.asarray(labels, np.int64))
        channels = images.shape[-1]
        return Stream(own, ImageStream(crop=0), (np.zeros(channels), np.ones(channels)), CPU)

    return make


@pytest.fixture(scope="session")
def make_task() -> Callable[..., Task]:
    """A task with plain training by default; ``training`` holds the options to set."""

    def make(build: Callable[[], nn.Module], natural: Stream, **settings: Any) -> Task:
        training = Training(**{"lr": 0.1, "weight_decay": 0.0, **settings.pop("training", {})})
        defaults = {"virtual": None, "classes": 3, "objective": Plain(), "algorithm": FedAvg(), "seed": 0}
        return Task(
            build=build,
            network=str(build),
            numerics=Numerics(CPU, "fp32"),
            natural=natural,
            features={"last": 16},
            training=training,
            longest=len(natural),
            **{**defaults, **settings},
        )

    return make


@pytest.fixture(scope="session")
def as_input() -> Callable[..., Tensor]:
    """8-bit images as a network's input, in NumPy: (pixels / 255 − mean) / std, channels first."""

    def convert(images: np.ndarray, mean: Any = 0.0, std: Any = 1.0) -> Tensor:
        normalised = (images / 255 - np.asarray(mean)) / np.asarray(std)
        return torch.from_numpy(normalised.transpose(0, 3, 1, 2).astype(np.float32))

    return convert


@pytest.fixture(scope="session")
def passes() -> Callable[..., list[np.ndarray]]:
    """The batches of one client's round as sample numbers, the last of an epoch filled up from its start."""

    def draw(
        seed: int, round_: int, client: int, count: int, batch: int, epochs: int = 1
    ) -> list[np.ndarray]:
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(round_, client)))
        orders = [rng.permutation(count) for _ in range(epochs)]
        steps = -(-count // batch)
        filled = [np.concatenate([order] * (batch + 1))[: steps * batch] for order in orders]
        return [one for order in filled for one in np.split(order, steps)]

    return draw


@pytest.fixture(scope="session")
def torch_training() -> Callable[..., None]:
    """An ordinary PyTorch loop: only the ``real`` first rows of a batch enter the loss."""

    def train(
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        images: Tensor,
        labels: Tensor,
        batches: list[np.ndarray],
        count: int,
    ) -> None:
        module.train()
        per_epoch = -(-count // len(batches[0]))
        for number, index in enumerate(batches):
            left = count - (number % per_epoch) * len(index)
            real = min(len(index), left)
            _, logits = module(images[index])
            loss = cross_entropy(logits[:real], labels[index[:real]])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return train
