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
from vhl.models._network import fuse
from vhl.models.vectors import FlatModel
from vhl.rounds.calibration import calibrate
from vhl.rounds.calibration import traffic as calibration_traffic
from vhl.rounds.client_state import remember
from vhl.rounds.distillation import Distiller
from vhl.rounds.evaluation import Evaluation, Evaluator, Fetch
from vhl.rounds.metrics import describe_training, drift, to_host, traffic
from vhl.rounds.pretraining import pretrain
from vhl.rounds.problem import Problem
from vhl.rounds.sampling import clients_per_round, learning_rate, sample
from vhl.rounds.snapshot import take_snapshot
from vhl.runs.checkpoint import State
from vhl.runs.record import Record
from vhl.training.lane import Ticket
from vhl.training.recipe import Note
from vhl.training.task import Job, Outcome


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
        problem: Problem | None = None,
        state: State | None = None,
        on_note: Note = lambda note: None,
        look_at_end: bool = False,
    ) -> None:
        """``on_note`` gets a sentence where something of the experiment makes it slower.

        With ``look_at_end`` the clients' models of the last round are evaluated too.
        """
        self.experiment, self._look_at_end = experiment, look_at_end
        self.problem = problem or Problem(experiment, data_dir)
        clients_per_round(experiment.clients_per_round, self.problem.clients)  # refuse before any training
        numerics = self.problem.numerics
        self.lanes = self.problem.lanes(on_note)
        self.task = self.problem.task()
        self.model = FlatModel(
            self.problem.initial(), self.problem.device, numerics.dtype, numerics.compute_dtype
        )
        self.pretraining_samples = 0
        self.state = state or self._start()
        if self.lanes.kernels:
            fuse(self.model.module)
        self._evaluator = self.problem.evaluator(self.model, self.lanes.capture)
        self._distiller = self._make_distiller(on_note)
        self.evaluation: Evaluation | None = None
        self.snapshot: dict[str, Tensor] | None = None
        """How clients' models do after this round, if that was asked for; see :func:`take_snapshot`."""
        self._progress: Generator[Record | None] | None = None

    def _make_distiller(self, on_note: Note) -> Distiller | None:
        settings, lanes = self.experiment.algorithm.distillation, self.lanes
        if settings is None:
            return None
        return Distiller(
            self.problem, settings, capture=lanes.capture, kernels=lanes.kernels, on_note=on_note
        )

    def _start(self) -> State:
        if self.experiment.objective.pretraining is not None:
            self.pretraining_samples = pretrain(self.problem, self.model)
        parameters, buffers = self.model.parameters.clone(), self.model.buffers.clone()
        return State(0, Server(parameters, buffers, self.experiment.algorithm.server_state(parameters)))

    def __iter__(self) -> Iterator[Record]:
        while self.state.round < self.experiment.rounds:
            yield self.run_round()

    def run_round(self) -> Record:
        """Run the next round and advance :attr:`state`."""
        while (record := self.poll()) is None:
            self.lanes.pump()
        return record

    def poll(self) -> Record | None:
        """The next round's record if it is there; else ``None``, and the lanes have to be pumped.

        So several simulations run side by side on the same lanes.
        """
        if self._progress is None:
            self._progress = self._rounds()
        try:
            return next(self._progress)
        except BaseException:
            self._progress = None  # the round is begun anew by whoever asks again
            raise

    def close(self) -> None:
        """Take back what the lanes have not done yet."""
        if self._progress is not None:
            self._progress.close()
            self._progress = None

    def _rounds(self) -> Generator[Record | None]:
        """Train, aggregate, evaluate; a GPU begins the next round while this one is evaluated."""
        self.lanes.open(self.task)
        try:
            started = time.perf_counter()
            flight = self._launch()
            while True:
                while not all(ticket.done for ticket in flight):
                    yield None
                landed = self._land(flight)
                more = self.lanes.overlaps and self.state.round < self.experiment.rounds
                following = self._launch() if more else None
                while not landed.ready:
                    yield None
                seconds, started = time.perf_counter() - started, time.perf_counter()
                yield self._record(landed, seconds)
                if following is None:
                    started, following = time.perf_counter(), self._launch()
                flight = following
        finally:
            self.lanes.close(self.task)

    def named_tensors(self) -> dict[str, Tensor]:
        """The server's model as named tensors on the CPU."""
        return self.model.layout.unpack(self.state.server.final, self.state.server.buffers)

    def _launch(self) -> list[Ticket]:
        """Hand the next round's jobs to the lanes, and let the chance of the one after be drawn meanwhile."""
        tickets = self.lanes.submit(self.task, self._jobs(), self._sent())
        following = self.state.round + 1
        if self.lanes.overlaps and following < self.experiment.rounds:
            for client in sample(self.experiment, following, self.problem.clients):
                self.lanes.prepare(self.task, following, client, self.problem.parts[client])
        return tickets

    def _sent(self) -> Server:
        """What clients get to see of the server."""
        server = _going_on(self.state.server)
        return replace(server, state=self.experiment.algorithm.sent(server.state))

    def _jobs(self) -> list[Job]:
        state, algorithm = self.state, self.experiment.algorithm
        jobs = []
        for client in sample(self.experiment, state.round, self.problem.clients):
            rate = learning_rate(self.experiment, state.round, state.participations.get(client, 0))
            own = state.clients.get(client)
            if own is None:
                own = algorithm.client_state(state.server)
            jobs.append(Job(client, state.round, self.problem.parts[client], rate, own))
        return jobs

    def _land(self, flight: Sequence[Ticket]) -> _Landed:
        """Aggregate what came of a round and begin to evaluate it: the one wait for the device in a round."""
        before = self.state
        jobs = [ticket.job for ticket in flight if ticket.outcome is not None]
        outcomes = [ticket.outcome for ticket in flight if ticket.outcome is not None]
        good, totals = to_host(outcomes)
        kept = [outcome for outcome, own in zip(outcomes, good, strict=True) if own]
        if not kept:
            raise VHLError(
                f"Round {before.round + 1}: every client's model became infinite or NaN; lower training.lr "
                f"(now {self.experiment.training.lr}), for round {before.round} is the last good state."
            )
        updates = [outcome.update for outcome in kept]
        self.state = self._advance(jobs, kept)
        steps, extra_bytes = self._refine(updates), self._calibrate()
        known = describe_training(self.problem, jobs, updates, totals)
        known["clients"] = [ticket.job.client for ticket in flight]
        counted = {update.client for update in updates}
        known["left_out"] = [client for client in known["clients"] if client not in counted]
        if steps is not None and self.experiment.algorithm.distillation is not None:
            known["server"] = {"distillation_steps": steps}
            known["samples"] += steps * self.experiment.algorithm.distillation.batch
        known["bytes"] = traffic(self.model, self._sent(), jobs, updates) + extra_bytes
        server = self.state.server
        finite = server.parameters.isfinite().all() & server.final.isfinite().all()
        numbers = Fetch({"drift": drift(self.experiment, updates), "finite": finite})
        shown = replace(server, parameters=server.final)
        counts = self._evaluator.start(shown) if self._is_evaluated() else None
        landed = _Landed(known, numbers, counts)
        self.snapshot = None
        looked_at = self.state.round in self.experiment.features_at
        at_end = self._look_at_end and self.state.round == self.experiment.rounds
        if self.problem.shows_images and (looked_at or at_end):
            seen = landed.read("test")
            self.snapshot = take_snapshot(self.problem, self.model, shown, updates, seen, features=looked_at)
        return landed

    def _is_evaluated(self) -> bool:
        round_, experiment = self.state.round, self.experiment
        last, looked_at = round_ == experiment.rounds, round_ in experiment.features_at
        return round_ % experiment.evaluate_every == 0 or last or looked_at

    def _advance(self, jobs: Sequence[Job], kept: Sequence[Outcome]) -> State:
        """Aggregate what is finite; a client that went wrong keeps the state it had."""
        algorithm, before = self.experiment.algorithm, self.state
        updates = [outcome.update for outcome in kept]
        server = _going_on(before.server)
        parameters, server_state = _aggregated(algorithm, server, updates, self.problem.clients)
        buffers = weighted_sum([update.buffers for update in updates], algorithm.shares(updates))
        new = {outcome.update.client: outcome.state for outcome in kept if outcome.state}
        counts = dict(before.participations)
        for job in jobs:
            counts[job.client] = counts.get(job.client, 0) + 1
        return replace(
            before,
            round=before.round + 1,
            server=Server(parameters, buffers, server_state),
            clients=remember(before.clients, new, self.experiment.engine.state_memory * 1e9),
            participations=counts,
        )

    def _refine(self, updates: Sequence[Update]) -> int | None:
        """Let the server train on what it has, where the algorithm says so; the steps it took."""
        if self._distiller is None:
            return None
        server, steps = self._distiller(self.state.server, updates, self.state.round - 1)
        self.state = replace(self.state, server=server)
        return steps

    def _calibrate(self) -> int:
        """After the last round, where the algorithm says so; the bytes that are sent for it."""
        settings = self.experiment.algorithm.calibration
        if settings is None or self.state.round < self.experiment.rounds:
            return 0
        server = calibrate(self.problem, self.model, self.state.server, settings)
        self.state = replace(self.state, server=server)
        return calibration_traffic(self.problem, self.model)

    def _record(self, landed: _Landed, seconds: float) -> Record:
        """The round's record; pretraining counts with the first."""
        self.evaluation, round_ = landed.evaluation, self.state.round
        numbers = landed.numbers.get()
        if not numbers["finite"]:
            raise VHLError(
                f"Round {round_}: {self.experiment.algorithm.name} made a model that is infinite or NaN of "
                f"clients' models that are not; round {round_ - 1} is the last good state."
            )
        found = {**landed.known, "drift": float(numbers["drift"])}
        found["samples"] += self.pretraining_samples if round_ == 1 else 0
        if self.evaluation is not None:
            found["accuracy"] = self.evaluation.accuracy
            found["natural_accuracy"] = self.evaluation.natural_accuracy
            found["per_class"] = self.evaluation.per_class
            found["tested"] = self._evaluator.tested
            if landed.has("validation"):
                found["validation_accuracy"] = landed.read("validation").accuracy
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


def _going_on(server: Server) -> Server:
    """Without parameters that are for use alone."""
    return replace(server, state={name: v for name, v in server.state.items() if name != FINAL})


@dataclass(frozen=True)
class _Landed:
    """A round that is aggregated; its drift and its evaluation may still be on their way."""

    known: dict[str, Any]
    """All of the record that is here already."""
    numbers: Fetch
    """Its drift, and whether the server's model is finite."""
    counts: Fetch | None

    @property
    def ready(self) -> bool:
        return self.numbers.ready and (self.counts is None or self.counts.ready)

    def has(self, name: str) -> bool:
        return self.counts is not None and f"{name}.0" in self.counts.get()

    def read(self, name: str) -> Evaluation:
        assert self.counts is not None
        return Evaluator.read(self.counts.get(), name)

    @property
    def evaluation(self) -> Evaluation | None:
        return None if self.counts is None else self.read("test")


def simulate(experiment: Experiment, data_dir: Path | str | None = None) -> Iterator[Record]:
    """Run an experiment, one record a round.

    >>> from vhl import Experiment, simulate
    >>> for record in simulate(Experiment(rounds=2, objective="plain", clients_per_round=1)):
    ...     print(record.round, record.clients != [])
    1 True
    2 True
    """
    yield from Simulation(experiment, data_dir)
