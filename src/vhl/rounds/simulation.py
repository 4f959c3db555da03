"""The round loop."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vhl.algorithms.base import FINAL, Algorithm, Server, Update, Vectors, weighted_sum
from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.models.layers.norm import fuse
from vhl.rounds.client_state import remember
from vhl.rounds.clients import Flight, Order
from vhl.rounds.evaluation import Evaluation, Pending
from vhl.rounds.federation import Federation
from vhl.rounds.local import local
from vhl.rounds.metrics import describe_training, drift, to_host, traffic
from vhl.rounds.pretraining import pretrain
from vhl.rounds.sampling import clients_per_round, learning_rate, sample
from vhl.rounds.snapshot import take_snapshot
from vhl.rounds.stage import ServerStage
from vhl.runs.checkpoint import State
from vhl.runs.record import Record
from vhl.training.static import Note
from vhl.training.task import Outcome


class Simulation:
    """Federated training of one experiment; iterating runs the rounds that are left and yields their records.

    >>> from vhl import Experiment, Simulation
    >>> simulation = Simulation(Experiment(rounds=1, objective="plain", clients_per_round=1))
    >>> [record.round for record in simulation]
    [1]
    """

    def __init__(
        self,
        experiment: Experiment,
        data_dir: Path | str | None = None,
        *,
        federation: Federation | None = None,
        state: State | None = None,
        on_note: Note = lambda note: None,
        look_at_end: bool = False,
    ) -> None:
        """Without a ``federation``, clients are here and share the experiment's own data.

        ``on_note`` gets a sentence where something of the experiment makes it slower.
        With ``look_at_end`` the clients' models of the last round are evaluated too.
        """
        self.experiment, self._look_at_end = experiment, look_at_end
        self.federation = federation or local(experiment, data_dir, on_note=on_note)
        self.setup, self.clients = self.federation.setup, self.federation.clients
        clients_per_round(experiment.clients_per_round, self.setup.clients)  # refuse before any training
        lanes = self.federation.lanes
        self.model = self.setup.model(start=True)
        self.stage = ServerStage(self.setup, self.clients, lanes.static(), kernels=lanes.kernels)
        experiment.algorithm.prepare(self.stage)
        self.pretraining_samples = 0
        self.state = state or self._start()
        if lanes.kernels:
            fuse(self.model.module)
        self.evaluation: Evaluation | None = None
        self.snapshot: dict[str, Tensor] | None = None
        """How clients' models do after this round, if that was asked for; see :func:`take_snapshot`."""
        self._progress: Generator[Record | None] | None = None

    def _start(self) -> State:
        if self.experiment.objective.pretraining is not None:
            self.pretraining_samples = pretrain(self.setup, self.federation.lanes, self.model)
        parameters, buffers = self.model.parameters.clone(), self.model.buffers.clone()
        return State(0, Server(parameters, buffers, self.experiment.algorithm.server_state(parameters)))

    def __iter__(self) -> Iterator[Record]:
        while self.state.round < self.experiment.rounds:
            yield self.run_round()

    def run_round(self) -> Record:
        """Run the next round and advance :attr:`state`."""
        while (record := self.poll()) is None:
            pass
        return record

    def poll(self) -> Record | None:
        """Go on for a while; the next round's record once it is there.

        So several simulations run side by side, which take turns.
        """
        if self._progress is None:
            self._progress = self._rounds()
        try:
            return next(self._progress)
        except BaseException:
            self._progress = None  # the round is begun anew by whoever asks again
            raise

    def close(self) -> None:
        """Take back what clients have not done yet."""
        if self._progress is not None:
            self._progress.close()
            self._progress = None

    def _rounds(self) -> Generator[Record | None]:
        """Train, aggregate, evaluate; a GPU begins the next round while this one is evaluated."""
        try:
            started = time.perf_counter()
            orders, flight = self._launch()
            while True:
                while (outcomes := flight.poll()) is None:
                    yield None
                landed = self._land(orders, outcomes)
                more = self.clients.overlaps and self.state.round < self.experiment.rounds
                following = self._launch() if more else None
                while not landed.ready:
                    yield None
                seconds, started = time.perf_counter() - started, time.perf_counter()
                yield self._record(landed, seconds)
                if following is None:
                    started, following = time.perf_counter(), self._launch()
                orders, flight = following
        finally:
            self.clients.close()

    def named_tensors(self) -> dict[str, Tensor]:
        """The server's model as named tensors on the CPU."""
        return self.model.layout.unpack(self.state.server.final, self.state.server.buffers)

    def _launch(self) -> tuple[list[Order], Flight]:
        """Give the next round's orders."""
        orders = self._next_orders()
        return orders, self.clients.train(orders, self._sent())

    def _sent(self) -> Server:
        """What clients get to see of the server."""
        server = _to_train_from(self.state.server)
        return replace(server, state=self.experiment.algorithm.sent(server.state))

    def _next_orders(self) -> list[Order]:
        state, algorithm = self.state, self.experiment.algorithm
        orders = []
        for client in sample(self.experiment, state.round, self.setup.clients):
            rate = learning_rate(self.experiment, state.round, state.participations.get(client, 0))
            own = state.clients.get(client)
            if own is None:
                own = algorithm.client_state(state.server)
            orders.append(Order(client, state.round, rate, own))
        return orders

    def _land(self, orders: Sequence[Order], outcomes: Sequence[Outcome]) -> _Landed:
        """Aggregate what came of a round and begin to evaluate it: the one wait for the device in a round."""
        before = self.state
        good, totals = to_host(outcomes)
        kept = [outcome for outcome, own in zip(outcomes, good, strict=True) if own]
        if not kept:
            raise VHLError(
                f"Round {before.round + 1}: every client's model became infinite or NaN; lower training.lr "
                f"(now {self.experiment.training.lr}), for round {before.round} is the last good state."
            )
        updates = [outcome.update for outcome in kept]
        answered = {outcome.update.client for outcome in outcomes}
        advanced = self._advance([o.client for o in orders if o.client in answered], kept)
        self.state = self._refined(advanced, updates)  # only now: what is interrupted has not happened
        done = [order for order in orders if order.client in answered]
        known = describe_training(self.setup, done, updates, totals)
        known["samples"] += self.stage.samples
        known["clients"] = [order.client for order in orders]
        counted = {update.client for update in updates}
        known["left_out"] = [client for client in known["clients"] if client not in counted]
        known["bytes"] = traffic(self.model, self._sent(), done, updates) + self.stage.bytes
        known["server"] = self.stage.numbers or None
        server = self.state.server
        finite = server.parameters.isfinite().all() & server.final.isfinite().all()
        numbers = Pending({"drift": drift(self.experiment, updates), "finite": finite})
        shown = replace(server, parameters=server.final)
        counts = self.clients.evaluate(shown) if self._is_evaluated() else None
        landed = _Landed(before, known, numbers, counts)
        self.snapshot = None
        looked_at = self.state.round in self.experiment.features_at
        at_end = self._look_at_end and self.state.round == self.experiment.rounds
        if self.setup.test is not None and len(self.setup.test) and (looked_at or at_end):
            seen = landed.evaluation
            assert seen is not None
            self.snapshot = take_snapshot(self.setup, self.model, shown, updates, seen, features=looked_at)
        return landed

    def _is_evaluated(self) -> bool:
        round_, experiment = self.state.round, self.experiment
        last, looked_at = round_ == experiment.rounds, round_ in experiment.features_at
        return round_ % experiment.evaluate_every == 0 or last or looked_at

    def _advance(self, clients: Sequence[int], kept: Sequence[Outcome]) -> State:
        """Aggregate what is finite; a client that went wrong keeps the state it had."""
        algorithm, before = self.experiment.algorithm, self.state
        updates = [outcome.update for outcome in kept]
        server = _to_train_from(before.server)
        parameters, server_state = _aggregated(algorithm, server, updates, self.setup.clients)
        buffers = weighted_sum([update.buffers for update in updates], algorithm.shares(updates))
        new = {outcome.update.client: outcome.state for outcome in kept if outcome.state}
        counts = dict(before.participations)
        for client in clients:
            counts[client] = counts.get(client, 0) + 1
        return replace(
            before,
            round=before.round + 1,
            server=Server(parameters, buffers, server_state),
            clients=remember(before.clients, new, self.experiment.engine.state_memory * 1e9),
            participations=counts,
        )

    def _refined(self, state: State, updates: Sequence[Update]) -> State:
        """What the method makes of it on the server."""
        self.stage.begin(state.round, self.state.server)
        server = self.experiment.algorithm.after_round(state.server, updates, self.stage)
        return replace(state, server=server)

    def _record(self, landed: _Landed, seconds: float) -> Record:
        """The round's record; pretraining counts with the first."""
        self.evaluation, round_ = landed.evaluation, self.state.round
        numbers = landed.numbers.get()
        if not numbers["finite"]:
            self.state = landed.before
            raise VHLError(
                f"Round {round_}: {self.experiment.algorithm.name} made a model that is infinite or NaN of "
                f"clients' models that are not; round {round_ - 1} is the last good state."
            )
        found = {**landed.known, "drift": float(numbers["drift"])}
        found["samples"] += self.pretraining_samples if round_ == 1 else 0
        if self.evaluation is not None:
            assert landed.counts is not None
            found["accuracy"] = self.evaluation.accuracy
            found["natural_accuracy"] = self.evaluation.natural_accuracy
            found["per_class"] = self.evaluation.per_class
            found["tested"] = landed.counts.tested
            validation = Evaluation.read(landed.counts.get(), "validation")
            found["validation_accuracy"] = None if validation is None else validation.accuracy
        return Record(round=round_, seconds=seconds, **found)


def _aggregated(
    algorithm: Algorithm, server: Server, updates: Sequence[Update], clients: int
) -> tuple[Tensor, Vectors]:
    """The server's new parameters and state; a method may be anyone's, and a mistake in it comes out here."""
    made = algorithm.aggregate(server, updates, clients)
    right = isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], Tensor)
    if not right or made[0].shape != server.parameters.shape or not isinstance(made[1], dict):
        raise VHLError(
            f"{algorithm.name}: aggregate must return a tensor of {len(server.parameters)} parameters and "
            "the server's vectors by name."
        )
    return made


def _to_train_from(server: Server) -> Server:
    """The server as the next round begins with it: without parameters that are for use alone."""
    return replace(server, state={name: v for name, v in server.state.items() if name != FINAL})


@dataclass(frozen=True)
class _Landed:
    """A round that is aggregated; its drift and its evaluation may still be on their way."""

    before: State
    """The last good state, should this one be none."""
    known: dict[str, Any]
    """All of the record that is here already."""
    numbers: Pending
    """Its drift, and whether the server's model is finite."""
    counts: Pending | None

    @property
    def ready(self) -> bool:
        return self.numbers.ready and (self.counts is None or self.counts.ready)

    @property
    def evaluation(self) -> Evaluation | None:
        return None if self.counts is None else Evaluation.read(self.counts.get(), "test")


def simulate(experiment: Experiment, data_dir: Path | str | None = None) -> Iterator[Record]:
    """Run an experiment, one record a round.

    >>> from vhl import Experiment, simulate
    >>> for record in simulate(Experiment(rounds=2, objective="plain", clients_per_round=1)):
    ...     print(record.round, record.clients != [])
    1 True
    2 True
    """
    yield from Simulation(experiment, data_dir)
