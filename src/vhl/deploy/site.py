"""A site's client: the run's setup on the site's own images, local training and evaluation."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from torch import Tensor

from vhl.algorithms.base import Server
from vhl.data.images import ImageSet
from vhl.data.partitions.base import count_matrix
from vhl.deploy.memory import Memory
from vhl.deploy.orders import Request
from vhl.deploy.own_data import read_data
from vhl.deploy.settings import NodeSettings
from vhl.deploy.terms import Terms
from vhl.errors import VHLError
from vhl.experiment import Experiment
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


class Site:
    """The one client that is here; each message may find it in a process of its own."""

    def __init__(self, settings: NodeSettings, terms: Terms) -> None:
        self._number = terms.sites.index(settings.name)
        self._memory = Memory(settings.store / "clients" / terms.run / settings.name)
        experiment = _for_one_client(terms.experiment, settings.device)
        with saying("settings", "The site cannot compute as its configuration says; its log says why."):
            precision = Precision.choose(experiment.engine, choose_device(experiment.device))
            lanes = Lanes(experiment.engine, precision)
        with saying("data", "The site's data could not be read or do not fit the terms; its log says why."):
            dataset = terms.fit(read_data(settings, experiment))
            part = np.arange(len(dataset.train))
            counts = count_matrix(dataset.train.labels, [part], len(terms.classes))
            sheet = DataSheet.of(dataset, counts, terms.statistics)
            data = ClientData.of(dataset.train, [part], experiment.data, terms.statistics, precision)
        with saying("experiment", "The experiment could not be set up; the site's log says why."):
            uses_virtual = experiment.objective.uses_virtual
            virtual = _virtual_data(settings, terms, precision) if uses_virtual else None
            held_out = {"test": dataset.test, "validation": dataset.validation}
            sets = {name: images for name, images in held_out.items() if images is not None and len(images)}
            self.setup = Setup.of(experiment, precision, sheet, settings.store, virtual, **sets)
            self.clients = LocalClients(self.setup, data, lanes)

    def train(self, request: Request, server: Server) -> tuple[Outcome, bool]:
        """Local training, as any client's; also says whether a state that should be here was lost."""
        kept = self._memory.recall(request.state)
        own = self.setup.experiment.algorithm.client_state(server) if kept is None else kept
        with saying("training", "Local training failed; the site's log says why."):
            outcome = self.clients.train_one(Order(self._number, request.round, request.rate, own), server)
        if not outcome.finite:
            raise SiteError("training", "The site's model became infinite or NaN.")
        with saying("state", "The site's state could not be kept; its log says why."):
            self._memory.keep(request.round, outcome.state, beside=request.state)
        return outcome, request.state is not None and kept is None

    def evaluate(self, server: Server) -> dict[str, Tensor]:
        """Counts of the model's predictions on the images that the site holds out."""
        with saying("evaluation", "Evaluation failed; the site's log says why."):
            return self.clients.evaluate(server).get()

    def moments(self, server: Server) -> dict[str, Tensor]:
        """Of the model's features of the site's training images, class by class."""
        with saying("evaluation", "Features could not be computed; the site's log says why."):
            return self.clients.moments(server)


def receive_virtual(settings: NodeSettings, terms: Terms, images: ImageSet) -> None:
    """Keep the server's virtual set."""
    if terms.virtual is None or images.fingerprint() != terms.virtual:
        raise SiteError("virtual", "The virtual set that came is not the one of the terms.")
    write_set(_received(settings, terms.virtual), images, terms.virtual)


def _virtual_data(settings: NodeSettings, terms: Terms, precision: Precision) -> VirtualData:
    """Processors round differently: a set made here counts if it is the server's to the bit."""
    wanted, experiment = str(terms.virtual), terms.experiment
    batch = experiment.objective.virtual_images(experiment.training.batch_size)
    found = read_set(_received(settings, wanted), wanted)
    if found is None and settings.virtual == "make":
        generator, seed = experiment.virtual, experiment.seeds.data
        classes = generator.classes or len(terms.classes)
        shape = terms.shape if batch is None else batch.shape(terms.shape)
        found = virtual_set(generator, classes, shape, seed, settings.store)
    if found is None or found.fingerprint() != wanted:
        raise SiteError("virtual", "The site has not got the server's virtual set.")
    return VirtualData.of(found, experiment.virtual, batch, precision)


def _received(settings: NodeSettings, fingerprint: str) -> Path:
    return settings.store / "virtual" / f"received-{fingerprint[:16]}.safetensors"


def _for_one_client(experiment: Experiment, device: str) -> Experiment:
    """A process that takes one job should not spend its time on preparing for many."""
    eager = {"capture": False, "kernels": False, "compile": False, "lanes": 1}
    engine = experiment.engine.model_copy(update=eager)
    return experiment.model_copy(update={"engine": engine, "device": device})
