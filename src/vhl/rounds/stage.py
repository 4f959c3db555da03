"""What a method may do on the server between rounds: the answer to :class:`vhl.algorithms.base.Stage`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vhl.algorithms.base import Server, Stage
from vhl.chance import Purpose, generator, words
from vhl.models.layers.norm import freeze_statistics
from vhl.models.vectors import FlatModel
from vhl.rounds.clients import Clients
from vhl.rounds.evaluation import Evaluation
from vhl.rounds.looking import count
from vhl.rounds.setup import Setup
from vhl.training.static import REHEARSALS, Place, Static, at_once
from vhl.training.streams import Passes, Stream
from vhl.virtual.base import Generator, Workplace
from vhl.virtual.sets import virtual_set


class ServerStage(Stage):
    """One for a run; :meth:`begin` says which round it is."""

    def __init__(self, setup: Setup, clients: Clients, static: Static, *, kernels: bool) -> None:
        self._setup, self._clients, self._static, self._kernels = setup, clients, static, kernels
        self.device, self.dtype = setup.precision.device, setup.precision.dtype
        self._place = Place(self.device) if self.device.type == "cuda" else None
        self._streams: list[torch.cuda.Stream] = []
        self.kept: dict[str, Any] = {}
        self.begin(0)

    def begin(self, round_: int, before: Server | None = None) -> None:
        """A round's stage starts with nothing said and nothing spent."""
        experiment = self._setup.experiment
        if before is not None:
            self.before = before
        self.round, self.last = round_, round_ == experiment.rounds
        self.frozen = experiment.training.freezes(round_ - 1)
        self.numbers: dict[str, float] = {}
        self.bytes = self.samples = 0

    # --- chance --------------------------------------------------------------------------------------------

    @property
    def seed(self) -> int:
        return self._setup.experiment.seeds.batches

    def generator(self) -> np.random.Generator:
        return generator(self.seed, Purpose.SERVER, self.round)

    @contextmanager
    def chance(self, number: int) -> Iterator[None]:
        seed = int(generator(self.seed, Purpose.SERVER, self.round, 1, number).integers(2**63))
        if self._place is not None:
            self._place.chance.manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # the CPU's alone: a GPU's default is someone else's
            yield

    # --- models --------------------------------------------------------------------------------------------

    def model(self) -> FlatModel:
        return self._setup.model(kernels=self._kernels)

    def training(self, model: FlatModel, *, statistics: bool = True) -> None:
        model.module.train()
        if self.frozen or not statistics:
            freeze_statistics(model.module)

    def logits(self, model: FlatModel, images: Tensor) -> Tensor:
        precision = self._setup.precision
        pixels = images.to(precision.compute_dtype, memory_format=torch.channels_last)
        with precision.autocast():
            logits: Tensor = model.module(pixels)[1]
        return logits.to(self.dtype)

    @torch.no_grad()
    def all_logits(self, models: Sequence[FlatModel], images: Tensor) -> list[Tensor]:
        """One alone leaves most of a GPU idle: eight ResNet-8 at once take 0.36 of the time of one by one."""
        asked = [partial(self.logits, model, images) for model in models]
        if self._place is None:
            return [ask() for ask in asked]
        while len(self._streams) < len(asked):
            self._streams.append(torch.cuda.Stream(self.device))
        return at_once(asked, self._streams[: len(asked)])

    def linear_head(self, parameters: Tensor, buffers: Tensor) -> tuple[Tensor, Tensor]:
        blueprint = self._setup.blueprint
        return blueprint.linear_head(blueprint.layout.views(parameters, buffers))

    def check_linear_head(self, whose: str) -> None:
        self._setup.blueprint.check_linear(whose)

    # --- work ----------------------------------------------------------------------------------------------

    def static(self, work: Callable[[], None], what: str) -> Callable[[], None]:
        return self._static(work, self._place, what)

    @contextmanager
    def working(self) -> Iterator[None]:
        with self._setup.precision.active():
            if self._place is None:
                yield
                return
            with self._place.work():
                yield
            self._place.stream.synchronize()  # others read next what was made here

    # --- images --------------------------------------------------------------------------------------------

    def images(self, generator: Generator | None, batch: int, most: int) -> _Images:
        setup, seed = self._setup, self._setup.experiment.seeds.data
        generator = generator or setup.experiment.virtual
        known = generator.known_classes(seed, Workplace(data_dir=setup.directory))
        classes = generator.classes or known or setup.classes
        made = virtual_set(generator, classes, setup.data.shape, seed, setup.directory, self.device)
        stream = Stream(made, generator, setup.data.statistics, self.device, dtype=self.dtype)
        return _Images(self, stream, batch, most)

    def noise(self, batch: int) -> Tensor:
        height, width, channels = self._setup.data.shape
        return torch.randn(batch, channels, height, width, dtype=self.dtype, device=self.device)

    def can_validate(self) -> bool:
        return self._setup.validation is not None

    def accuracy(self, model: FlatModel) -> float:
        setup = self._setup
        assert setup.validation is not None
        counts = count(model, setup.validation, setup.classes, setup.precision)
        return Evaluation(*(table.cpu() for table in counts)).accuracy

    # --- clients and records -------------------------------------------------------------------------------

    def moments(self, server: Server) -> dict[str, Tensor]:
        """Down goes the model, up come counts, sums and products; of these, being symmetric, half."""
        setup, found = self._setup, self._clients.moments(server)
        layout, length = setup.blueprint.layout, found["sums"].shape[1]
        down = layout.parameter_count + layout.buffer_count
        up = setup.classes * (1 + length + length * (length + 1) // 2)
        self.bytes += server.parameters.element_size() * setup.clients * (down + up)
        return found

    def report(self, samples: int = 0, **numbers: float) -> None:
        self.samples += samples
        self.numbers |= numbers


class _Images:
    """Images of a stream, in passes whose random orders are a round's own."""

    def __init__(self, stage: ServerStage, stream: Stream, batch: int, most: int) -> None:
        self._stage, self._stream, self._batch, self._most = stage, stream, batch, most
        self._row = torch.zeros(1, dtype=torch.int64, device=stage.device)
        self._drawn: dict[str, Tensor] = {}
        self._passes: tuple[int, Passes] | None = None

    def draw(self, first: int, count: int) -> None:
        stage, shape = self._stage, (count, self._batch)
        if self._passes is None or self._passes[0] != stage.round:
            self._passes = stage.round, Passes(self._stream, stage.seed, Purpose.SERVER_ORDER, stage.round)
        first, total = first * self._batch, count * self._batch
        number = first + torch.arange(total, device=stage.device)
        drawn = words(stage.seed, Purpose.SERVER, stage.round, 0, 0, number)
        chosen = {"index": self._passes[1].take(first, total), **self._stream.choices(drawn)}
        for name, values in chosen.items():
            if name not in self._drawn:  # rehearsals may go on where a stretch ends
                whole = (self._most + REHEARSALS, self._batch)
                self._drawn[name] = torch.zeros(whole, dtype=values.dtype, device=stage.device)
            self._drawn[name][:count].copy_(values.view(shape))
        self._row.zero_()

    def next(self) -> tuple[Tensor, Tensor]:
        own = {name: rows.index_select(0, self._row)[0] for name, rows in self._drawn.items()}
        self._row.add_(1)
        index = own.pop("index")
        return self._stream.batch(index, own), self._stream.labels[index]
