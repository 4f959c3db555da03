"""A site: its data, its virtual set, the state that its client keeps, and its local training."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vhl.algorithms.base import Server, Vectors
from vhl.config.registry import build
from vhl.data.images import Dataset, ImageSet
from vhl.data.partitions.base import count_matrix
from vhl.data.sources.base import Source, data_directory
from vhl.data.sources.folder import Folder
from vhl.deploy.decoded import load_decoded
from vhl.deploy.orders import Request
from vhl.deploy.terms import NAME, Facts, Terms
from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.files import write_tensors
from vhl.models.files import read_tensors
from vhl.rounds.clients import Order
from vhl.rounds.datasheet import DataSheet
from vhl.rounds.local import LocalClients
from vhl.rounds.setup import Setup
from vhl.training.client_data import ClientData, VirtualData
from vhl.training.lanes import Lanes
from vhl.training.precision import Precision, choose_device
from vhl.training.task import Outcome
from vhl.virtual.sets import read_set, virtual_set, write_set

_log = logging.getLogger(__name__)
_PART = re.compile(r"part:(\d+)")


class SiteError(Exception):
    """What went wrong, as the server may know it: a code and a sentence that tells nothing of the site."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code, self.sentence = code, sentence


@contextlib.contextmanager
def saying(code: str, sentence: str) -> Iterator[None]:
    """Keep an error's own words, which may name paths, in the site's log; the server gets these."""
    try:
        yield
    except SiteError:
        raise
    except Exception as error:
        _log.error("%s", error, exc_info=not isinstance(error, VHLError))
        raise SiteError(code, sentence) from error


@dataclass(frozen=True)
class Settings:
    """What a node's configuration says."""

    name: str
    data: str
    """``folder:PATH``, ``npz:PATH``, or for trials ``part:I``: part I of the experiment's own data."""
    store: Path
    """Where the site keeps its client's state and its caches."""
    device: str
    makes_virtual: bool
    """Whether it makes the virtual set itself rather than wait for the server's."""

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Settings:
        """In Flower's simulation runtime a node is known by a number: that part of the experiment's data."""
        if "partition-id" in config:
            part = int(config["partition-id"])
            config = {"name": f"part-{part:06d}", "data": f"part:{part}", **config}
        name, data = str(config.get("name", "")), str(config.get("data", ""))
        if not NAME.fullmatch(name):
            raise VHLError(f"name = {name!r} in the node's configuration; use letters, digits, . _ and -.")
        if not data:
            raise VHLError("data is missing in the node's configuration: folder:PATH or npz:PATH.")
        virtual = str(config.get("virtual", "make"))
        if virtual not in ("make", "receive"):
            raise VHLError(f"virtual = {virtual!r} in the node's configuration; choose make or receive.")
        store = data_directory(str(config.get("store", ""))).expanduser()
        return cls(name, data, store, str(config.get("device", "auto")), virtual == "make")


@dataclass(frozen=True)
class SiteWork:
    """A site's one client, ready to be asked."""

    setup: Setup
    clients: LocalClients


class Site:
    """What one node does, whoever asks; each message may find it in a process of its own."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def facts(self, experiment: Experiment) -> Facts:
        with saying("data", "The site's data could not be read; its log says why."):
            is_open = experiment.data.mean is None or experiment.data.std is None
            return Facts.of(self.settings.name, self._data(experiment), sums=is_open)

    def work(self, terms: Terms) -> SiteWork:
        """What the site needs to answer: its one client, on its own images."""
        experiment = _for_one_client(terms.experiment, self.settings.device)
        with saying("settings", "The site cannot compute as its configuration says; its log says why."):
            precision = Precision.choose(experiment.engine, choose_device(experiment.device))
            lanes = Lanes(experiment.engine, precision)
        with saying("data", "The site's data could not be read or do not fit the terms; its log says why."):
            dataset = terms.fit(self._data(experiment))
            part = np.arange(len(dataset.train))
            counts = count_matrix(dataset.train.labels, [part], len(terms.classes))
            sheet = DataSheet.of(dataset, counts, terms.statistics)
            data = ClientData.of(dataset.train, [part], experiment.data, terms.statistics, precision)
        with saying("experiment", "The experiment could not be set up; the site's log says why."):
            virtual = self._virtual(terms, precision) if experiment.objective.uses_virtual else None
            held_out = {"test": dataset.test, "validation": dataset.validation}
            sets = {name: images for name, images in held_out.items() if images is not None and len(images)}
            setup = Setup.of(experiment, precision, sheet, self.settings.store, virtual, **sets)
            return SiteWork(setup, LocalClients(setup, data, lanes))

    def train(self, terms: Terms, work: SiteWork, request: Request, server: Server) -> tuple[Outcome, bool]:
        """Local training, as any client's; also says whether a state that should be here was lost."""
        server = _on(work.setup.precision.device, server)
        kept = self._state(terms, request.state)
        own = work.setup.experiment.algorithm.client_state(server) if kept is None else kept
        number = terms.sites.index(self.settings.name)
        with saying("training", "Local training failed; the site's log says why."):
            outcome = work.clients.train_one(Order(number, request.round, request.rate, own), server)
        if not outcome.finite:
            raise SiteError("training", "The site's model became infinite or NaN.")
        with saying("state", "The site's state could not be kept; its log says why."):
            self._keep_state(terms, request, outcome.state)
        return outcome, request.state is not None and kept is None

    def moments(self, work: SiteWork, server: Server) -> dict[str, Tensor]:
        """Of the model's features of the site's training images, class by class."""
        with saying("evaluation", "Features could not be computed; the site's log says why."):
            return work.clients.moments(_on(work.setup.precision.device, server))

    def evaluate(self, work: SiteWork, server: Server) -> dict[str, Tensor]:
        """Counts of the model's predictions on the images that the site holds out."""
        with saying("evaluation", "Evaluation failed; the site's log says why."):
            return work.clients.evaluate(_on(work.setup.precision.device, server)).get()

    def receive_virtual(self, terms: Terms, images: ImageSet) -> None:
        """Keep the server's virtual set."""
        if terms.virtual is None or images.fingerprint() != terms.virtual:
            raise SiteError("virtual", "The virtual set that came is not the one of the terms.")
        write_set(self._received(terms.virtual), images, terms.virtual)

    def _virtual(self, terms: Terms, precision: Precision) -> VirtualData:
        """Processors round differently: a set made here counts if it is the server's to the bit."""
        wanted, experiment = str(terms.virtual), terms.experiment
        batch = experiment.objective.virtual_images(experiment.training.batch_size)
        found = read_set(self._received(wanted), wanted)
        if found is None and self.settings.makes_virtual:
            generator, seed = experiment.virtual, experiment.seeds.data
            classes = generator.classes or len(terms.classes)
            shape = terms.shape if batch is None else batch.shape(terms.shape)
            found = virtual_set(generator, classes, shape, seed, self.settings.store)
        if found is None or found.fingerprint() != wanted:
            raise SiteError("virtual", "The site has not got the server's virtual set.")
        return VirtualData.of(found, experiment.virtual, batch, precision)

    def _received(self, fingerprint: str) -> Path:
        return self.settings.store / "virtual" / f"received-{fingerprint[:16]}.safetensors"

    def _data(self, experiment: Experiment) -> Dataset:
        part, seed = _PART.fullmatch(self.settings.data), experiment.seeds.data
        if part is None:
            own, store = _own_source(self.settings.data, experiment.data), self.settings.store
            if isinstance(own, Folder):
                return load_decoded(own, seed, store)
            return own.load(store, seed, whole=False)
        dataset = experiment.data.load(data_directory(), seed)
        parts = experiment.partition.assign(dataset, seed)
        mine = int(part[1])
        if mine >= len(parts):
            raise VHLError(f"data = part:{mine}, but the partition has {len(parts)} parts, from 0.")
        tests = np.arange(mine, len(dataset.test), len(parts))
        validation = dataset.validation
        if validation is not None:
            validation = validation.take(np.arange(mine, len(validation), len(parts)))
        return Dataset(
            dataset.train.take(parts[mine]), dataset.test.take(tests), dataset.classes, validation=validation
        )

    def _folder(self, terms: Terms) -> Path:
        return self.settings.store / "clients" / terms.run / self.settings.name

    def _state(self, terms: Terms, round_: int | None) -> Vectors | None:
        """What the client kept after the last of its rounds that counted."""
        if round_ is None:
            return None
        file = self._folder(terms) / _state_name(round_)
        try:
            return read_tensors(file)[0] if file.is_file() else None
        except VHLError as error:
            _log.error("%s", error)
            return None

    def _keep_state(self, terms: Terms, request: Request, state: Vectors) -> None:
        """The new state beside the one before, for the server decides whether this round counts."""
        if not state:
            return
        folder = self._folder(terms)
        write_tensors(folder / _state_name(request.round), state)
        needed = {_state_name(r) for r in (request.round, request.state) if r is not None}
        for file in folder.iterdir():
            if file.name not in needed:
                file.unlink(missing_ok=True)


def _state_name(round_: int) -> str:
    return f"round-{round_:06d}.safetensors"


def _own_source(words: str, settings: Source) -> Source:
    """The site's source with the experiment's settings, as far as it has them."""
    own = build(Source, "data", words)
    common = set(type(own).model_fields) & set(type(settings).model_fields) - {"name", "path"}
    laid_over = {key: value for key in common if (value := getattr(settings, key)) is not None}
    return own.model_copy(update=laid_over)


def _for_one_client(experiment: Experiment, device: str) -> Experiment:
    """A process that takes one job should not spend its time on preparing for many."""
    eager = {"capture": False, "kernels": False, "compile": False, "lanes": 1}
    engine = experiment.engine.model_copy(update=eager)
    return experiment.model_copy(update={"engine": engine, "device": device})


def _on(device: torch.device, server: Server) -> Server:
    state = {name: vector.to(device) for name, vector in server.state.items()}
    return Server(server.parameters.to(device), server.buffers.to(device), state)
