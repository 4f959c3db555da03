from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from vhl.algorithms.base import Server
from vhl.algorithms.fedavg import FedAvg
from vhl.data.images import ImageSet, ImageStream
from vhl.experiment import Engine, Training
from vhl.models.cnn import CNN
from vhl.models.vectors import FlatModel
from vhl.objectives.plain import Plain
from vhl.training import lanes
from vhl.training.lanes import Lanes
from vhl.training.precision import Precision
from vhl.training.static import REHEARSALS, Place
from vhl.training.streams import Stream
from vhl.training.task import Job, Outcome, Task
from vhl.training.trainer import Trainer

CPU, GPU = torch.device("cpu"), torch.device("cuda")


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
            precision=Precision(CPU, "fp32"),
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


# --- clients of a small task ---------------------------------------------------------------------------


class _Foreign(nn.Module):
    """A network with layers and chance of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(128, 6))

    def forward(self, images: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        return {"last": images}, self.layers(images)


def _network(kind: str) -> nn.Module:
    torch.manual_seed(2)
    return _Foreign() if kind == "foreign" else CNN(width=4, norm=kind).build(6, 2, (8, 8))


@pytest.fixture(scope="session")
def small_task(make_stream: Callable[..., Stream], make_task: Callable[..., Task]) -> Callable[..., Task]:
    """Clients of up to twenty images in batches of 4; the network is ours or a foreign one.

    Ours normalises by ``batch`` or ``group``.
    """
    rng = np.random.default_rng(4)
    natural = make_stream(rng.integers(0, 256, (20, 8, 8, 2), np.uint8), rng.integers(0, 3, 20))

    def make(network: str = "batch", **settings: Any) -> Task:
        return make_task(partial(_network, network), natural, **{"training": {"batch_size": 4}, **settings})

    return make


@pytest.fixture(scope="session")
def server_of() -> Callable[..., Server]:
    """The server of a task before its first round, with these vectors of the algorithm."""

    def make(task: Task, **state: Tensor) -> Server:
        model = FlatModel(task.build(), CPU, task.precision.dtype)
        return Server(model.parameters, model.buffers, state)

    return make


@pytest.fixture(scope="session")
def begin() -> Callable[..., None]:
    """Gives a trainer a job."""

    def start(trainer: Trainer, job: Job, server: Server) -> None:
        plan = trainer.task.plan(job.round, job.client, job.samples)
        trainer.begin(job, server, {name: torch.from_numpy(rows) for name, rows in plan.items()})

    return start


@pytest.fixture(scope="session")
def train(begin: Callable[..., None]) -> Callable[..., Outcome]:
    """Trains a job with a trainer; ``step`` is how it takes its steps, if not by itself."""

    def run(trainer: Trainer, job: Job, server: Server, step: Callable[[], None] | None = None) -> Outcome:
        begin(trainer, job, server)
        for _ in range(trainer.task.steps(len(job.samples))):
            (step or trainer.step)()
        return trainer.finish(job, trainer.task)

    return run


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Rounds and clients whose chance was drawn, in order."""
    found, plan = [], Task.plan

    def noted(task: Task, round_: int, client: int, samples: np.ndarray) -> dict[str, np.ndarray]:
        found.append((round_, client))
        return plan(task, round_, client, samples)

    monkeypatch.setattr(Task, "plan", noted)
    return found


# --- what stands in for a GPU --------------------------------------------------------------------------


class FakePlace(Place):
    """A place whose stream does nothing; its chance is a generator of the CPU."""

    def __init__(self, number: int = 0, event: Callable[[], Any] | None = None) -> None:
        self.number, self.chance = number, torch.Generator()
        self.stream = SimpleNamespace(
            device=GPU, wait_stream=lambda other: None, synchronize=lambda: None, record_event=event
        )


class FakeGPU:
    """Streams whose work is done at once, but seen to be done only when ``through`` says so."""

    def __init__(self) -> None:
        self.through = True
        self.steps: Counter[int] = Counter()
        """Replays of captured steps, by lane."""
        self.places: list[FakePlace] = []
        self.free, self.need = 100, 10
        """Memory, and what a lane takes of it."""
        self.fits, self.refused = 100, 0
        """Lanes that find memory, and how often another was told that there is none."""

    def lanes(self, **engine: Any) -> Lanes:
        return Lanes(Engine(**engine), Precision(GPU, "fp32"))

    def place(self, device: torch.device) -> FakePlace:
        assert device == GPU
        self.places.append(FakePlace(len(self.places), self.event))
        return self.places[-1]

    def event(self, **_: Any) -> Any:
        seen = [self.through]

        def query() -> bool:
            seen[0] = seen[0] or self.through
            return seen[0]

        return SimpleNamespace(query=query, record=lambda stream: None)

    def captured(self, function: Callable[[], None], place: FakePlace) -> Callable[[], None]:
        if place.number >= self.fits:
            self.refused += 1
            raise torch.OutOfMemoryError("CUDA out of memory.")
        self.free -= self.need

        def once() -> None:
            with _numbers_from(place.chance):
                function()

        for _ in range(REHEARSALS):
            once()

        def replay() -> None:
            self.steps[place.number] += 1
            once()

        return replay


@contextmanager
def _numbers_from(generator: torch.Generator) -> Iterator[None]:
    """As on a GPU: PyTorch's own chance is this generator's for a while."""
    before = torch.get_rng_state()
    torch.set_rng_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(torch.get_rng_state())
        torch.set_rng_state(before)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> FakePlace:
    """Where steps run as on a GPU."""
    monkeypatch.setattr(recipe, "random_numbers_from", _numbers_from)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: None)
    return FakePlace()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, place: FakePlace) -> FakeGPU:
    """Lanes made by ``gpu.lanes()`` run as on a GPU."""
    fake = FakeGPU()
    monkeypatch.setattr(lanes, "Place", fake.place)
    monkeypatch.setattr(lanes, "_PAUSE", 0)
    monkeypatch.setattr(lanes, "has_triton", lambda: False)
    monkeypatch.setattr(recipe, "Captured", fake.captured)
    monkeypatch.setattr(torch.cuda, "Event", fake.event)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (fake.free, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 100 - fake.free)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    return fake
