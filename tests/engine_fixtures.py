from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
from vhl.chance import Purpose, words
from vhl.config.sections import Engine, Training
from vhl.data.images import ImageSet, ImageStream
from vhl.models.cnn import CNN
from vhl.models.vectors import FlatModel
from vhl.objectives.plain import Plain
from vhl.rounds.simulation import Simulation
from vhl.training.lanes import Lanes
from vhl.training.precision import Precision
from vhl.training.static import REHEARSALS, Place, Work
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
        defaults = {
            "precision": Precision(CPU, "fp32"),
            "virtual": None,
            "classes": 3,
            "features": {"last": 16},
            "objective": Plain(),
            "algorithm": FedAvg(),
            "seed": 0,
            "sizes": (len(natural),),
        }
        known = {"build": build, "network": str(build), "natural": natural, "training": training}
        return Task(**{**defaults, **known, **settings})

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
    """The batches of one client's round as sample numbers; the last of an epoch may be short."""

    def draw(
        seed: int, round_: int, client: int, count: int, batch: int, epochs: int = 1
    ) -> list[np.ndarray]:
        found: list[np.ndarray] = []
        for epoch in range(epochs):
            keys, *_ = words(seed, Purpose.NATURAL, round_, client, epoch, torch.arange(count))
            order = np.argsort(keys.numpy(), kind="stable")
            found += [order[start : start + batch] for start in range(0, count, batch)]
        return found

    return draw


@pytest.fixture(scope="session")
def torch_training() -> Callable[..., None]:
    """An ordinary PyTorch loop over batches of sample numbers."""

    def train(
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        images: Tensor,
        labels: Tensor,
        batches: Sequence[np.ndarray],
    ) -> None:
        module.train()
        for index in batches:
            _, logits = module(images[index])
            optimizer.zero_grad()
            cross_entropy(logits, labels[index]).backward()
            optimizer.step()

    return train


# --- clients of a small task ---------------------------------------------------------------------------


class _Foreign(nn.Module):
    """A network of other layers."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), layer, nn.Linear(128, 6))

    def forward(self, images: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        return {"last": images}, self.layers(images)


def _network(kind: str) -> nn.Module:
    torch.manual_seed(2)
    others = {"foreign": nn.Dropout(0.5), "pytorch": nn.BatchNorm1d(128)}
    return _Foreign(others[kind]) if kind in others else CNN(width=4, norm=kind).build(6, 2, (8, 8))


@pytest.fixture(scope="session")
def small_task(make_stream: Callable[..., Stream], make_task: Callable[..., Task]) -> Callable[..., Task]:
    """Clients of up to twenty images in batches of 4; the network is ours or another.

    Ours normalises by ``batch`` or ``group``; others are ``foreign``, which has chance of its own, and
    ``pytorch``, whose batch norm is PyTorch's.
    """
    rng = np.random.default_rng(4)
    natural = make_stream(rng.integers(0, 256, (20, 8, 8, 2), np.uint8), rng.integers(0, 3, 20))

    def make(network: str = "batch", **settings: Any) -> Task:
        defaults = {"natural": natural, "training": {"batch_size": 4}, "sizes": (20, 7)}
        return make_task(partial(_network, network), **{**defaults, **settings})

    return make


@pytest.fixture(scope="session")
def server_of() -> Callable[..., Server]:
    """The server of a task before its first round, with these vectors of the algorithm."""

    def make(task: Task, **state: Tensor) -> Server:
        model = FlatModel(task.build(), CPU, task.precision.dtype)
        return Server(model.parameters, model.buffers, state)

    return make


@pytest.fixture(scope="session")
def jobs_of() -> Callable[..., list[Job]]:
    """Jobs of clients, each with a number and how many images it has: the task's first ones."""

    def make(*clients: tuple[int, int], round_: int = 0) -> list[Job]:
        return [Job(client, round_, torch.arange(count), 0.1, {}) for client, count in clients]

    return make


@pytest.fixture(scope="session")
def parts_of() -> Callable[..., list[Tensor]]:
    """The training images of each client of a simulation, as indices."""

    def deal(simulation: Simulation) -> list[Tensor]:
        experiment, seed = simulation.experiment, simulation.experiment.seeds.data
        dataset = experiment.data.load(simulation.setup.directory, seed)
        return [torch.from_numpy(part) for part in experiment.partition.assign(dataset, seed)]

    return deal


@pytest.fixture(scope="session")
def begin() -> Callable[..., None]:
    """Gives a trainer a job."""

    def start(trainer: Trainer, job: Job, server: Server) -> None:
        (schedule,) = trainer.task.schedules([job])
        trainer.begin(job, trainer.task, server, schedule)

    return start


@pytest.fixture(scope="session")
def train(begin: Callable[..., None]) -> Callable[..., Outcome]:
    """Trains a job with a trainer; ``step`` is how it takes its steps, if not by itself."""

    def run(trainer: Trainer, job: Job, server: Server, step: Callable[[], None] | None = None) -> Outcome:
        begin(trainer, job, server)
        for _ in range(trainer.task.steps(len(job.samples))):
            (step or trainer.next)()
        return trainer.finish(job, trainer.task)

    return run


# --- what stands in for a GPU --------------------------------------------------------------------------


class FakeGPU:
    """Places whose work is done at once, but seen to be done only when ``through`` says so."""

    def __init__(self) -> None:
        self.through = True
        self.steps: Counter[int] = Counter()
        """Replays of recorded work, by lane."""
        self.places: list[FakePlace] = []
        self.free, self.need = 100, 10
        """Memory, and what a lane takes of it."""
        self.fits, self.refused = 100, 0
        """Lanes that find memory, and how often another was told that there is none."""

    def lanes(self, on_note: Callable[[str], None] = lambda note: None, **engine: Any) -> Lanes:
        """Lanes that run as on this GPU; there are no kernels."""
        return Lanes(Engine(**{"kernels": False, **engine}), Precision(GPU, "fp32"), on_note, self.place)

    def place(self, device: torch.device = GPU) -> FakePlace:
        assert device == GPU
        self.places.append(FakePlace(self, len(self.places)))
        return self.places[-1]


class FakePlace(Place):
    """A place without a stream; its chance is a generator of the CPU."""

    def __init__(self, gpu: FakeGPU, number: int) -> None:
        self.gpu, self.number, self.chance = gpu, number, torch.Generator()
        self._has_memory = False

    @contextmanager
    def enqueue(self) -> Iterator[None]:
        yield

    @contextmanager
    def work(self) -> Iterator[None]:
        yield

    @contextmanager
    def own_chance(self) -> Iterator[None]:
        before = torch.get_rng_state()
        torch.set_rng_state(self.chance.get_state())
        try:
            yield
        finally:
            self.chance.set_state(torch.get_rng_state())
            torch.set_rng_state(before)

    def event(self, *, timed: bool = False) -> Any:
        seen = [self.gpu.through]

        def query() -> bool:
            seen[0] = seen[0] or self.gpu.through
            return seen[0]

        return SimpleNamespace(query=query)

    def record(self, work: Work) -> Work:
        """Work is rehearsed as on a GPU; a replay does it again."""
        if self.number >= self.gpu.fits:
            self.gpu.refused += 1
            raise torch.OutOfMemoryError("CUDA out of memory.")
        if not self._has_memory:
            self._has_memory = True
            self.gpu.free -= self.gpu.need
        for _ in range(REHEARSALS):
            with self.own_chance():
                work()

        def replay() -> None:
            self.gpu.steps[self.number] += 1
            with self.own_chance():
                work()

        return replay


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGPU:
    """Lanes made by ``gpu.lanes()`` run as on a GPU."""
    fake = FakeGPU()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (fake.free, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 100 - fake.free)
    return fake
