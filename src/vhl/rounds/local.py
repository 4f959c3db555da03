"""Clients on this machine: their data lie on its device, and lanes train them there."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

import torch
from pydantic import BaseModel
from torch import Tensor

from vhl.algorithms.base import Server
from vhl.config.sections import Engine
from vhl.data.images import Dataset
from vhl.data.partitions.base import count_matrix
from vhl.data.sources.base import data_directory
from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.rounds.clients import Clients, Order
from vhl.rounds.datasheet import DataSheet
from vhl.rounds.evaluation import Evaluator, Pending
from vhl.rounds.federation import Federation
from vhl.rounds.looking import moments
from vhl.rounds.setup import Setup
from vhl.training.client_data import ClientData, VirtualData
from vhl.training.lane import Ticket
from vhl.training.lanes import Lanes
from vhl.training.precision import Precision, choose_device
from vhl.training.static import Note
from vhl.training.task import Job, Outcome, Task
from vhl.virtual.base import Progress
from vhl.virtual.sets import virtual_set

Item = TypeVar("Item")


class Shelf(Generic[Item]):
    """Things that are shared for as long as someone uses them."""

    def __init__(self) -> None:
        self._items: WeakValueDictionary[str, Item] = WeakValueDictionary()

    def get(self, make: Callable[[], Item], *words: object) -> Item:
        """What lies here under these words, or else what ``make`` makes."""
        key = json.dumps([w.model_dump(mode="json") if isinstance(w, BaseModel) else str(w) for w in words])
        item = self._items.get(key)
        if item is None:
            item = self._items[key] = make()
        return item


class Shared:
    """What simulations in one process share: the lanes of a device, and data that lie on it.

    Give the same one to several simulations and they run side by side.
    """

    def __init__(self) -> None:
        self.natural: Shelf[Natural] = Shelf()
        self.virtual: Shelf[VirtualData] = Shelf()
        self._lanes: dict[tuple[Engine, Precision], Lanes] = {}

    def lanes(self, engine: Engine, precision: Precision, on_note: Note) -> Lanes:
        """Lanes outlive an experiment: the next may take the same steps."""
        if (engine, precision) not in self._lanes:
            self._lanes[engine, precision] = Lanes(engine, precision, on_note)
        return self._lanes[engine, precision]


@dataclass(frozen=True)
class Natural(ClientData):
    """A dataset dealt out to clients, who hold it together with what it was made of."""

    dataset: Dataset
    sheet: DataSheet

    @classmethod
    def deal(cls, experiment: Experiment, directory: Path, precision: Precision) -> Natural:
        source, seed = experiment.data, experiment.seeds.data
        dataset: Dataset = source.load(directory, seed)
        parts = experiment.partition.assign(dataset, seed)
        if not all(len(part) for part in parts):
            raise VHLError(
                f"partition = {experiment.partition.name} leaves a client without images; change it."
            )
        counts = count_matrix(dataset.train.labels, parts, len(dataset.classes))
        statistics = source.statistics(dataset.train.images)
        data = ClientData.of(dataset.train, parts, source, statistics, precision)
        return cls(data.images, data.parts, dataset, DataSheet.of(dataset, counts, statistics))


def local(
    experiment: Experiment,
    data_dir: Path | str | None = None,
    progress: Progress | None = None,
    shared: Shared | None = None,
    on_note: Note = lambda note: None,
) -> Federation:
    """An experiment on its own data, with all its clients here."""
    shared, directory = shared or Shared(), data_directory(data_dir)
    precision = Precision.choose(experiment.engine, choose_device(experiment.device))
    natural = shared.natural.get(
        lambda: Natural.deal(experiment, directory, precision),
        experiment.data,
        experiment.partition,
        experiment.seeds.data,
        directory,
        precision.device,
        precision.dtype,
    )
    virtual = make_virtual(experiment, natural.sheet, directory, precision, progress, shared)
    dataset = natural.dataset
    sets = {"test": dataset.test, "validation": dataset.validation}
    setup = Setup.of(experiment, precision, natural.sheet, directory, virtual, **sets)
    lanes = shared.lanes(experiment.engine, precision, on_note)
    return Federation(setup, LocalClients(setup, natural, lanes), lanes)


def make_virtual(
    experiment: Experiment,
    sheet: DataSheet,
    directory: Path,
    precision: Precision,
    progress: Progress | None = None,
    shared: Shared | None = None,
) -> VirtualData | None:
    """The experiment's virtual set on the device, where its objective uses one."""
    generator, seed = experiment.virtual, experiment.seeds.data
    if not experiment.objective.uses_virtual:
        return None
    batch = experiment.objective.virtual_images(experiment.training.batch_size)
    classes = generator.classes or len(sheet.classes)
    shape = sheet.shape if batch is None else batch.shape(sheet.shape)

    def make() -> VirtualData:
        images = virtual_set(generator, classes, shape, seed, directory, precision.device, progress)
        return VirtualData.of(images, generator, batch, precision)

    tiles = (1, False) if batch is None else (batch.tiles, batch.one_class)
    words = (generator, classes, shape, seed, directory, precision.device, precision.dtype, *tiles)
    return (shared or Shared()).virtual.get(make, *words)


def task_of(setup: Setup, data: ClientData) -> Task:
    """What the clients train."""
    experiment, blueprint = setup.experiment, setup.blueprint
    return Task(
        build=blueprint.build,
        network=blueprint.identity(),
        precision=setup.precision,
        natural=data.images,
        virtual=None if setup.virtual is None else setup.virtual.train,
        classes=setup.classes,
        features=blueprint.known.lengths,
        objective=experiment.objective,
        algorithm=experiment.algorithm,
        training=experiment.training,
        seed=experiment.seeds.batches,
        sizes=tuple(len(part) for part in data.parts),
        shared=setup.shared,
    )


class LocalClients(Clients):
    """Trains clients on the lanes of a device; on a GPU many side by side."""

    def __init__(self, setup: Setup, data: ClientData, lanes: Lanes) -> None:
        self.lanes, self.task = lanes, task_of(setup, data)
        self._setup, self.data = setup, data
        self._is_open = False
        self._evaluator: Evaluator | None = None

    @property
    def overlaps(self) -> bool:  # type: ignore[override]
        return self.lanes.overlaps

    def train(self, orders: Sequence[Order], server: Server) -> _Flight:
        if not self._is_open:
            self.lanes.open(self.task)
            self._is_open = True
        parts = self.data.parts
        jobs = [Job(o.client, o.round, parts[o.client], o.rate, o.state) for o in orders]
        return _Flight(self.lanes, self.lanes.submit(self.task, jobs, server))

    def train_one(self, order: Order, server: Server) -> Outcome:
        """The one client that is here, whatever its number among all."""
        (samples,) = self.data.parts
        job = Job(order.client, order.round, samples, order.rate, order.state)
        (outcome,) = self.lanes.train(self.task, [job], server)
        return outcome

    def evaluate(self, server: Server) -> Pending:
        if self._evaluator is None:
            self._evaluator = own_evaluator(self._setup, self.lanes)
        return self._evaluator.start(server)

    def moments(self, server: Server) -> dict[str, Tensor]:
        setup = self._setup
        model = setup.model(kernels=self.lanes.kernels)
        model.load(server.parameters, server.buffers)
        every = torch.cat([*self.data.parts])
        return moments(model, self.data.images.plain(), every, setup.classes, setup.precision)

    def close(self) -> None:
        if self._is_open:
            self.lanes.close(self.task)
            self._is_open = False


def own_evaluator(setup: Setup, lanes: Lanes) -> Evaluator:
    """Who looks at the held-out images that are here."""
    sets = {"test": setup.test, "validation": setup.validation}
    held_out = {name: stream for name, stream in sets.items() if stream is not None}
    model = setup.model(kernels=lanes.kernels)
    return Evaluator(model, setup.precision, held_out, setup.classes, lanes.static())


class _Flight:
    """Jobs on the lanes."""

    def __init__(self, lanes: Lanes, tickets: Sequence[Ticket]) -> None:
        self._lanes, self._tickets = lanes, list(tickets)
        self._waiting = list(reversed(tickets))

    def poll(self) -> list[Outcome] | None:
        """Each look begins with the first job that was not done at the last."""
        while self._waiting and self._waiting[-1].done:
            self._waiting.pop()
        if self._waiting:
            self._lanes.pump()
            return None
        return [ticket.outcome for ticket in self._tickets if ticket.outcome is not None]
