"""The engine's places where data lie elsewhere: clients train there, and predictions are counted there."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import RecordDict
from torch import Tensor

from vhl.algorithms.base import Server, Update
from vhl.data.images import Dataset, ImageSet
from vhl.deploy.exchange import Exchange
from vhl.deploy.fleet import Fleet
from vhl.deploy.forms import total_names, update_forms
from vhl.deploy.orders import Order, Report
from vhl.deploy.terms import Terms
from vhl.deploy.wire import (
    Form,
    OtherImagesError,
    RefusedError,
    flatten,
    from_arrays,
    from_text,
    to_arrays,
    to_text,
    without,
)
from vhl.errors import VHLError
from vhl.models.vectors import FlatModel
from vhl.rounds.evaluation import Evaluator, Fetch
from vhl.rounds.problem import Problem, choose_device
from vhl.training.client_data import NaturalData
from vhl.training.lane import Ticket
from vhl.training.lanes import Lanes
from vhl.training.precision import Numerics
from vhl.training.recipe import Note
from vhl.training.task import Job, Outcome, Task

RECEIPT = "site.round"
"""Where the server's copy of a client's state says which round's state at the site counts."""


class DeployedProblem(Problem):
    """An experiment whose clients are sites; the server has its own test images, or none."""

    def __init__(
        self,
        terms: Terms,
        counts: np.ndarray,
        fleet: Fleet,
        own: Dataset | None,
        data_dir: Path,
    ) -> None:
        """``own`` are the server's images: ``test``, and ``validation`` where there are any."""
        self.fleet, experiment = fleet, terms.experiment
        self._tests_here = own is not None
        if own is None and not any(sum(fleet.facts[name].test) for name in terms.sites):
            raise VHLError("No site holds out images to test on; set test to images that the server has.")
        numerics = Numerics.choose(experiment.engine, choose_device(experiment.device))
        nothing = ImageSet(np.zeros((0, *terms.shape), np.uint8), np.zeros(0, np.int64))
        dataset = Dataset(
            nothing,
            nothing if own is None else own.test,
            terms.classes,
            terms.sites,
            None if own is None else own.validation,
        )
        parts = [np.broadcast_to(np.int64(0), total) for total in counts.sum(1)]  # their lengths are used
        natural = NaturalData(dataset, parts, counts, experiment.data, terms.statistics, numerics)
        super().__init__(experiment, data_dir, natural=natural)
        self.exchange = Exchange(fleet, terms, None if self.virtual is None else self.virtual.images)
        self.terms = self.exchange.terms

    def lanes(self, on_note: Note = lambda note: None) -> Lanes:
        return RemoteLanes(self, on_note)

    def evaluator(self, model: FlatModel, capture: bool) -> Evaluator:
        return super().evaluator(model, capture) if self._tests_here else RemoteEvaluator(self)

    @property
    def ignores_sites(self) -> bool:
        return False

    def describe_data(self) -> dict[str, Any]:
        facts = [self.fleet.facts[name] for name in self.terms.sites]
        found = super().describe_data()
        if not self._tests_here:
            found["test_samples"] = sum(sum(own.test) for own in facts)
        return {**found, "deployment": {"run": self.terms.run, "facts": [own.model_dump() for own in facts]}}

    def moments(self, model: FlatModel) -> dict[str, Tensor]:
        """Summed over the sites, of which no one sees another's."""
        length = self.shape.features["last"]
        shapes = {"counts": (), "sums": (length,), "products": (length, length)}
        forms = {name: (torch.float64, (self.classes, *shape)) for name, shape in shapes.items()}

        def check(name: str, seen: Mapping[str, Tensor]) -> None:
            if seen["counts"].tolist() != self.natural.counts[self.terms.sites.index(name)].tolist():
                raise OtherImagesError("it counts other images than the site has")

        found = self.exchange.look(
            "query.moments", model.parameters, model.buffers, self.terms.sites, lambda name: forms, check
        )
        return {name: _total([own[name] for own in found.values()]) for name in forms}


class RemoteLanes(Lanes):
    """Hands jobs to sites, all at once; a site that does not answer well leaves its ticket empty."""

    def __init__(self, problem: DeployedProblem, on_note: Note) -> None:
        super().__init__(problem.experiment.engine, problem.numerics, on_note)
        self._problem = problem
        self._tickets: list[Ticket] = []

    @property
    def overlaps(self) -> bool:
        return False

    def open(self, task: Task) -> None:
        pass

    def close(self, task: Task) -> None:
        self._tickets = []

    def submit(self, task: Task, jobs: Sequence[Job], server: Server) -> list[Ticket]:
        self._tickets = [Ticket(task, job, server) for job in jobs]
        return list(self._tickets)

    def pump(self) -> None:
        tickets, self._tickets = self._tickets, []
        if not tickets:
            return
        problem = self._problem
        sites = {problem.terms.sites[ticket.job.client]: ticket for ticket in tickets}
        vectors = to_arrays(flatten(tickets[0].server))
        terms = to_text(problem.terms.table())

        def ask(names: list[str]) -> set[str]:
            orders = {name: to_text(_order(sites[name].job).model_dump()) for name in names}
            contents = {
                n: RecordDict({"terms": terms, "order": o, "server": vectors}) for n, o in orders.items()
            }
            for name, content in problem.exchange.ask("train", contents).items():
                try:
                    sites[name].outcome = self._outcome(sites[name], content)
                except RefusedError as error:
                    problem.fleet.refuse(name, error)
            return {name for name in names if sites[name].outcome is not None}

        problem.exchange.until_enough(f"round {tickets[0].job.round + 1}", list(sites), ask)
        for ticket in tickets:
            ticket.span.ended = time.perf_counter()

    @cached_property
    def _forms(self) -> dict[str, Any]:
        return update_forms(self._problem)

    @cached_property
    def _totals(self) -> set[str]:
        return total_names(self._problem.task(), self._problem.shape.outputs)

    def _outcome(self, ticket: Ticket, content: RecordDict) -> Outcome:
        """A reply that passed every check, as if the client had trained here."""
        job, device, run = ticket.job, self._problem.device, self._problem.terms.run
        site = self._problem.terms.sites[job.client]
        report = Report.read(from_text(content, "report"))
        if (report.run, report.round) != (run, job.round):
            raise RefusedError(f"it is of round {report.round + 1} of run {report.run}")
        self._problem.fleet.check_samples(site, report.samples)
        if set(report.totals) != self._totals:
            raise RefusedError(f"its totals are {sorted(report.totals)}")
        vectors = {n: v.to(device) for n, v in from_arrays(content, "update", self._forms).items()}
        if report.lost_state:
            self._problem.fleet.note(f"Site {site} had lost its state and began anew.")
        message = without("message.", vectors)
        update = Update(job.client, ticket.task.work(job), vectors["parameters"], vectors["buffers"], message)
        totals = {name: torch.tensor(total, dtype=torch.float64) for name, total in report.totals.items()}
        receipt = {RECEIPT: torch.tensor(job.round)} if report.keeps_state else {}
        return Outcome(update, receipt, totals, torch.tensor(True))


def _order(job: Job) -> Order:
    receipt = job.state.get(RECEIPT)
    return Order(round=job.round, rate=job.rate, state=None if receipt is None else int(receipt))


class RemoteEvaluator(Evaluator):
    """Sums the counts of the held-out images of the sites that answer."""

    def __init__(self, problem: DeployedProblem) -> None:
        self._problem = problem

    def start(self, server: Server) -> Fetch:
        problem = self._problem
        with_images = [name for name in problem.terms.sites if "test" in _held_out(problem, name)]
        found = problem.exchange.look(
            "evaluate", server.parameters, server.buffers, with_images, self._forms, self._check
        )
        keys = sorted({key for counts in found.values() for key in counts})
        self.tested = None
        if len(found) < len(with_images):
            self.tested = sum(int(own["test.0"].sum()) for own in found.values())
            # The best round is chosen by validation: the easier images of a few sites must not decide.
            keys = [key for key in keys if key.startswith("test.")]
        return Fetch({key: _total([own[key] for own in found.values() if key in own]) for key in keys})

    def _forms(self, name: str) -> dict[str, Form]:
        classes, outputs = self._problem.classes, self._problem.shape.outputs
        held = _held_out(self._problem, name)
        return {f"{s}.{i}": (torch.int64, (classes, (outputs, classes)[i])) for s in held for i in (0, 1)}

    def _check(self, name: str, counts: Mapping[str, Tensor]) -> None:
        """They must fit what the site has said of its held-out images."""
        held = _held_out(self._problem, name)
        for key, count in counts.items():
            if (count < 0).any() or count.sum(1).tolist() != held[key.split(".")[0]]:
                raise OtherImagesError(f"{key} does not add up to the images that the site has")


def _held_out(problem: DeployedProblem, site: str) -> dict[str, list[int]]:
    """Held-out images of each agreed class, for the kinds that the site has."""
    facts = problem.fleet.facts[site]
    kinds = {"test": facts.test, "validation": facts.validation}
    found = {kind: dict(zip(facts.classes, own, strict=True)) for kind, own in kinds.items() if sum(own)}
    return {kind: [own.get(name, 0) for name in problem.terms.classes] for kind, own in found.items()}


def _total(counts: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(counts)).sum(0)
