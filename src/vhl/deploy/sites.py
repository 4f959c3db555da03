"""Clients that are sites: what the round loop asks of them goes over the network, every answer is checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import product

import torch
from flwr.app import RecordDict
from torch import Tensor

from vhl.algorithms.base import Server, Update, Work
from vhl.deploy.exchange import Exchange
from vhl.deploy.forms import total_names, update_forms
from vhl.deploy.orders import Report, Request
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
from vhl.rounds.clients import Clients, Order
from vhl.rounds.evaluation import Evaluator, Pending
from vhl.rounds.setup import Setup
from vhl.training.schedule import steps_per_epoch
from vhl.training.task import Outcome

RECEIPT = "site.round"
"""Where the server's copy of a client's state says which round's state at the site counts."""


class SiteClients(Clients):
    """Hands orders to sites, all at once; one that does not answer well is left out of the round."""

    overlaps = False

    def __init__(self, setup: Setup, exchange: Exchange, evaluator: Evaluator | None) -> None:
        """With an ``evaluator`` the server's own images are looked at, else those that sites hold out."""
        self.setup, self.exchange, self._evaluator = setup, exchange, evaluator

    def train(self, orders: Sequence[Order], server: Server) -> _Flight:
        return _Flight(self, orders, server)

    def evaluate(self, server: Server) -> Pending:
        if self._evaluator is not None:
            return self._evaluator.start(server)
        held = {name: self._held_out(name) for name in self.exchange.terms.sites}
        forms = {name: self._count_forms(own) for name, own in held.items() if "test" in own}

        def check(name: str, counts: Mapping[str, Tensor]) -> None:
            for key, count in counts.items():
                if (count < 0).any() or count.sum(1).tolist() != held[name][key.split(".")[0]]:
                    raise OtherImagesError(f"{key} does not add up to the images that the site has")

        found = self.exchange.look("evaluate", server, forms, check)
        keys = sorted({key for counts in found.values() for key in counts})
        tested = None
        if len(found) < len(forms):
            tested = sum(int(own["test.0"].sum()) for own in found.values())
            # The best round is chosen by validation: the easier images of a few sites must not decide.
            keys = [key for key in keys if key.startswith("test.")]
        pending = Pending({key: _total([own[key] for own in found.values() if key in own]) for key in keys})
        pending.tested = tested
        return pending

    def moments(self, server: Server) -> dict[str, Tensor]:
        """Summed over the sites, of which no one sees another's."""
        setup, terms = self.setup, self.exchange.terms
        length = setup.blueprint.known.lengths["last"]
        shapes = {"counts": (), "sums": (length,), "products": (length, length)}
        forms = {name: (torch.float64, (setup.classes, *shape)) for name, shape in shapes.items()}

        def check(name: str, seen: Mapping[str, Tensor]) -> None:
            if seen["counts"].tolist() != setup.data.counts[terms.sites.index(name)].tolist():
                raise OtherImagesError("it counts other images than the site has")

        found = self.exchange.look("query.moments", server, dict.fromkeys(terms.sites, forms), check)
        return {name: _total([own[name] for own in found.values()]) for name in forms}

    def close(self) -> None:
        """Whatever sites still do, its answer will not be read."""

    @cached_property
    def update_forms(self) -> dict[str, Form]:
        return update_forms(self.setup)

    @cached_property
    def total_names(self) -> set[str]:
        return total_names(self.setup)

    def _count_forms(self, held_out: Iterable[str]) -> dict[str, Form]:
        """Two tables for each kind of held-out images: over all outputs, and over the natural ones."""
        classes, outputs = self.setup.classes, self.setup.blueprint.outputs
        widths = enumerate((outputs, classes))
        return {f"{k}.{i}": (torch.int64, (classes, n)) for (i, n), k in product(widths, held_out)}

    def _held_out(self, site: str) -> dict[str, list[int]]:
        """Held-out images of each agreed class, for the kinds that the site has."""
        facts = self.exchange.fleet.facts[site]
        kinds = {"test": facts.test, "validation": facts.validation}
        found = {kind: dict(zip(facts.classes, own, strict=True)) for kind, own in kinds.items() if sum(own)}
        agreed = self.exchange.terms.classes
        return {kind: [own.get(name, 0) for name in agreed] for kind, own in found.items()}


class _Flight:
    """A round's orders, on their way to sites and back."""

    def __init__(self, clients: SiteClients, orders: Sequence[Order], server: Server) -> None:
        self._clients, self._exchange, self._server = clients, clients.exchange, server
        self._orders = {self._exchange.terms.sites[order.client]: order for order in orders}
        self._found: dict[str, Outcome] = {}

    def poll(self) -> list[Outcome]:
        """Ask, and wait until enough have answered well."""
        round_ = next(iter(self._orders.values())).round
        self._exchange.until_enough(f"round {round_ + 1}", list(self._orders), self._ask)
        return [self._found[name] for name in self._orders if name in self._found]

    def _ask(self, names: list[str]) -> set[str]:
        vectors, terms = to_arrays(flatten(self._server)), to_text(self._exchange.terms.table())
        requests = {name: to_text(_request(self._orders[name]).model_dump()) for name in names}
        contents = {
            name: RecordDict({"terms": terms, "order": request, "server": vectors})
            for name, request in requests.items()
        }
        for name, content in self._exchange.ask("train", contents).items():
            try:
                self._found[name] = self._outcome(name, content)
            except RefusedError as error:
                self._exchange.fleet.refuse(name, error)
        return {name for name in names if name in self._found}

    def _outcome(self, site: str, content: RecordDict) -> Outcome:
        """A reply that passed every check, as if the client had trained here."""
        order, setup, run = self._orders[site], self._clients.setup, self._exchange.terms.run
        report = Report.read(from_text(content, "report"))
        if (report.run, report.round) != (run, order.round):
            raise RefusedError(f"it is of round {report.round + 1} of run {report.run}")
        self._exchange.fleet.check_samples(site, report.samples)
        if set(report.totals) != self._clients.total_names:
            raise RefusedError(f"its totals are {sorted(report.totals)}")
        arrays = from_arrays(content, "update", self._clients.update_forms)
        vectors = {name: vector.to(setup.precision.device) for name, vector in arrays.items()}
        if report.lost_state:
            self._exchange.fleet.note(f"Site {site} had lost its state and began anew.")
        training, size = setup.experiment.training, setup.sizes[order.client]
        steps = training.epochs * steps_per_epoch(size, training.batch_size)
        work = Work(size, steps, order.rate, training.momentum)
        message = without("message.", vectors)
        update = Update(order.client, work, vectors["parameters"], vectors["buffers"], message)
        totals = {name: torch.tensor(total, dtype=torch.float64) for name, total in report.totals.items()}
        receipt = {RECEIPT: torch.tensor(order.round)} if report.keeps_state else {}
        return Outcome(update, receipt, totals, torch.tensor(True))


def _request(order: Order) -> Request:
    receipt = order.state.get(RECEIPT)
    return Request(round=order.round, rate=order.rate, state=None if receipt is None else int(receipt))


def _total(counts: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(counts)).sum(0)
