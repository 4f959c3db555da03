from __future__ import annotations

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: tests run side by side, one core each

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import PrivateAttr
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from vhl.data.images import Dataset, ImageSet
from vhl.data.sources.base import Source
from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.models.base import Model
from vhl.objectives.base import Batch, Objective, weighted_mean
from vhl.rounds.local import Shared, local
from vhl.rounds.simulation import Simulation, State
from vhl.runs.record import Record

pytest_plugins = ["engine_fixtures", "run_fixtures"]


class _ArraySource(Source):
    """Images that a test holds in memory."""

    _dataset: Dataset = PrivateAttr()

    def read(self, data_dir: Path, seed: int) -> Dataset:
        return self._dataset


class _Point(nn.Module):
    """Three weights; logits are weights − pixels. The buffer counts training batches."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(3))
        self.register_buffer("batches", torch.zeros(1))

    def forward(self, images: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        if self.training:
            self.batches += 1
        pixels = images.flatten(1)
        return {"last": pixels}, F.linear(pixels, -torch.eye(3), self.weights)


class _PointModel(Model):
    """A network of three weights."""

    def build(self, classes: int, channels: int, size: tuple[int, int]) -> nn.Module:
        return _Point()


class _Quadratic(Objective):
    """½‖w − x‖², mean over the batch: the gradient is w − mean(x)."""

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        return {"quadratic": weighted_mean(batch.logits.square().sum(1) / 2, batch.weights)}


@pytest.fixture(scope="session")
def array_source() -> Callable[..., Source]:
    """A source with these images, labels and sites; the test images are the training images by default."""

    def make(
        train: ImageSet, classes: int, *, test: ImageSet | None = None, sites: int = 0, **settings: Any
    ) -> Source:
        source = _ArraySource(**settings)
        names = tuple(f"class {number}" for number in range(classes))
        site_names = tuple(f"site {number}" for number in range(sites))
        source._dataset = Dataset(train, test or train, names, site_names)
        return source

    return make


@pytest.fixture(scope="session")
def a_record() -> Callable[..., Record]:
    """A round's record with what matters; the rest is made up."""

    def make(round_: int, accuracy: float | None = None, **values: Any) -> Record:
        usual: dict[str, Any] = {"loss": {}, "train_accuracy": None, "drift": 1.0, "learning_rate": 0.1}
        usual |= {"samples": 3_000, "compute": 1.0, "bytes": 1, "clients": [0], "seconds": 0.5}
        return Record(round=round_, accuracy=accuracy, **{**usual, **values})

    return make


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory of the tests' own."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def point_simulation(array_source: Callable[..., Source]) -> Callable[..., Simulation]:
    """Clients that minimise ½‖w − x‖² over their own points x in R³, from w = 0.

    ``points`` are whole numbers from 0 to 255, one array (n, 3) a client. Training is plain gradient descent
    with full participation unless settings say otherwise.
    """

    def make(
        points: Sequence[Any], labels: Sequence[int] | None = None, lanes: int = 1, **settings: Any
    ) -> Simulation:
        pixels = np.concatenate([np.asarray(own, np.uint8) for own in points]).reshape(-1, 1, 3, 1)
        sites = np.repeat(np.arange(len(points)), [len(own) for own in points])
        train = ImageSet(pixels, np.asarray(labels or [0] * len(pixels), np.int64), sites)
        training = {"lr": 0.5, "lr_decay": 1.0, "momentum": 0.0, "weight_decay": 0.0, "batch_size": 2}
        experiment = Experiment(
            data=array_source(train, 3, sites=len(points), crop=0, mean=(0.0,), std=(1 / 255,)),
            partition="given",
            model=_PointModel(),
            objective=settings.pop("objective", _Quadratic()),
            training={**training, **settings.pop("training", {})},
            **{
                "rounds": 2,
                "clients_per_round": 1.0,
                "device": "cpu",
                "engine": {"lanes": lanes},
                **settings,
            },
        )
        return Simulation(experiment)

    return make


@pytest.fixture(scope="session")
def quadratic() -> type[Objective]:
    """The objective ½‖w − x‖² of ``point_simulation``, to be subclassed."""
    return _Quadratic


@pytest.fixture(scope="session")
def point_model() -> Model:
    """The three weights of ``point_simulation``."""
    return _PointModel()


@pytest.fixture(scope="session")
def weights_of() -> Callable[[Simulation], np.ndarray]:
    """The server's three weights."""
    return lambda simulation: simulation.named_tensors()["weights"].numpy()


@pytest.fixture(scope="session")
def write_digits() -> Callable[..., Path]:
    """Writes the first digits of 8×8 pixels to an npz file, and further arrays beside them."""

    def write(file: Path, count: int, n_class: int = 10, **arrays: np.ndarray) -> Path:
        digits = load_digits(n_class=n_class)
        images = (digits.images[:count] * 15).astype(np.uint8)
        np.savez(file, images=images, labels=digits.target[:count], **arrays)
        return file

    return write


@pytest.fixture(scope="session")
def small_digits(array_source: Callable[..., Source]) -> Callable[..., Source]:
    """Eighty training and forty test digits of 8×8 pixels in four classes."""
    digits = load_digits(n_class=4)
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)[..., None]
    whole = ImageSet(images, digits.target.astype(np.int64))
    train, test = whole.take(np.arange(80)), whole.take(np.arange(80, 120))
    return lambda **settings: array_source(train, 4, test=test, **settings)


@pytest.fixture(scope="session")
def digit_simulation(
    small_digits: Callable[..., Source], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Simulation]:
    """Four clients with eighty digits and a small convolutional network; VHL with forty virtual images."""
    folder = tmp_path_factory.mktemp("data")

    def make(
        lanes: int = 1,
        *,
        on_note: Callable[[str], None] = lambda note: None,
        state: State | None = None,
        shared: Shared | None = None,
        **settings: Any,
    ) -> Simulation:
        defaults: dict[str, Any] = {
            "data": small_digits(),
            "partition": {"name": "lda", "alpha": 0.5, "clients": 4},
            "virtual": {"name": "noise", "per_class": 10},
            "model": {"name": "cnn", "width": 4},
            "objective": "plain",
            "training": {"batch_size": 8},
            "clients_per_round": 1.0,
            "rounds": 2,
            "device": "cpu",
            "engine": {"lanes": lanes},
        }
        if settings.get("objective") == "vhl":
            settings["objective"] = {"name": "vhl", "virtual_batch": 6}
        experiment = Experiment(**{**defaults, **settings})
        federation = local(experiment, folder, shared=shared, on_note=on_note)
        return Simulation(experiment, federation=federation, state=state, on_note=on_note)

    return make


@pytest.fixture
def one_thread() -> Iterator[None]:
    """So small a network is slower on two threads; and no result depends on the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def complains() -> Callable[..., Any]:
    """``with complains("a", "b"):`` expects one sentence that contains every text."""

    @contextmanager
    def expect(*texts: object) -> Iterator[None]:
        with pytest.raises(VHLError) as caught:
            yield
        message = str(caught.value)
        assert "\n" not in message and message.endswith((".", "?"))
        for text in texts:
            assert str(text) in message

    return expect


@pytest.fixture(autouse=True)
def ctrl_c_counts() -> Iterator[None]:
    """A shell starts background jobs with Ctrl-C ignored, and what they start inherits that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Loud, for nobody looks at what was skipped; here, where pytest-xdist's controller finds it."""
    missing = "the report's browser tests need a browser"
    skipped = [r for r in terminalreporter.getreports("skipped") if missing in str(r.longrepr)]
    if skipped:
        terminalreporter.write_line(
            f"{len(skipped)} browser tests of the report were SKIPPED: no browser was found. "
            "`apt-get install chromium` (or the like) brings one; $VHL_BROWSER may name it.",
            red=True,
            bold=True,
        )
