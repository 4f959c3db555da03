"""Clients that are sites: what the round loop asks of them goes over the network, every answer is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
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
        return _Flight(partial(self._train, orders, server))

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

    def _train(self, orders: Sequence[Order], server: Server) -> list[Outcome]:
        terms, vectors = to_text(self.exchange.terms.table()), to_arrays(flatten(server))
        asked = {self.exchange.terms.sites[order.client]: order for order in orders}
        questions = {
            name: RecordDict(
                {"terms": terms, "order": to_text(_request(order).model_dump()), "server": vectors}
            )
            for name, order in asked.items()
        }

        def read(name: str, content: RecordDict) -> Outcome:
            return self._outcome(name, asked[name], content)

        return list(self.exchange.collect(f"round {orders[0].round + 1}", "train", questions, read).values())

    def _outcome(self, site: str, order: Order, content: RecordDict) -> Outcome:
        """A reply that passed every check, as if the client had trained here."""
        setup, fleet, run = self.setup, self.exchange.fleet, self.exchange.terms.run
        report = Report.read(from_text(content, "report"))
        if (report.run, report.round) != (run, order.round):
            raise RefusedError(f"it is of round {report.round + 1} of run {report.run}")
        fleet.check_samples(site, report.samples)
        if set(report.totals) != self._total_names:
            raise RefusedError(f"its totals are {sorted(report.totals)}")
        arrays = from_arrays(content, "update", self._update_forms)
        vectors = {name: vector.to(setup.precision.device) for name, vector in arrays.items()}
        if report.lost_state:
            fleet.note(f"Site {site} had lost its state and began anew.")
        training, size = setup.experiment.training, setup.sizes[order.client]
        steps = training.epochs * steps_per_epoch(size, training.batch_size)
        work = Work(size, steps, order.rate, training.momentum)
        message = without("message.", vectors)
        update = Update(order.client, work, vectors["parameters"], vectors["buffers"], message)
        totals = {name: torch.tensor(total, dtype=torch.float64) for name, total in report.totals.items()}
        receipt = {RECEIPT: torch.tensor(order.round)} if report.keeps_state else {}
        return Outcome(update, receipt, totals, torch.tensor(True))

    @cached_property
    def _update_forms(self) -> dict[str, Form]:
        return update_forms(self.setup)

    @cached_property
    def _total_names(self) -> set[str]:
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
    """A round's orders, which go to the sites when somebody asks what came of them."""

    def __init__(self, poll: Callable[[], list[Outcome]]) -> None:
        self.poll = poll


def _request(order: Order) -> Request:
    receipt = order.state.get(RECEIPT)
    return Request(round=order.round, rate=order.rate, state=None if receipt is None else int(receipt))


def _total(counts: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(counts)).sum(0)
