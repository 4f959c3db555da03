"""The round loop."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from vhl.algorithms.base import Server, Update, Vectors, weighted_sum
from vhl.engine.evaluation import Evaluation, evaluate
from vhl.engine.lanes import Job, Lane, Outcome, train_clients
from vhl.engine.plan import steps_per_epoch
from vhl.engine.pretraining import pretrain
from vhl.engine.problem import Problem
from vhl.engine.record import Record
from vhl.engine.sampling import clients_per_round, learning_rate, sample
from vhl.engine.snapshot import take_snapshot
from vhl.engine.vectors import FlatModel
from vhl.errors import VHLError
from vhl.experiment import Experiment


@dataclass(frozen=True)
class State:
    """All that a run carries from one round to the next; replaced whole, never changed in place."""

    round: int
    """Rounds done."""
    server: Server
    clients: dict[int, Vectors] = field(default_factory=dict)
    """Vectors of the clients that have any."""
    participations: dict[int, int] = field(default_factory=dict)


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
        lanes: int = 1,
    ) -> None:
        self.experiment = experiment
        self.problem = problem or Problem(experiment, data_dir)
        clients_per_round(experiment.clients_per_round, self.problem.clients)  # refuse before any training
        self.lanes = [Lane(self.problem.task()) for _ in range(lanes)]
        self.model = FlatModel(self.problem.initial(), self.problem.device)
        self.pretraining_samples = 0
        self.state = state or self._start()
        self.evaluation: Evaluation | None = None
        self.snapshot: dict[str, Tensor] | None = None
        """Features and client models of the last round, where ``features_at`` names it."""

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
        started = time.perf_counter()
        before = self.state
        jobs = self._jobs()
        outcomes = train_clients(self.lanes, jobs, before.server)
        finite = [bool(outcome.finite) for outcome in outcomes]
        kept = [outcome for outcome, good in zip(outcomes, finite, strict=True) if good]
        if not kept:
            raise VHLError(
                f"Round {before.round + 1}: every client's model became infinite or NaN; lower training.lr "
                f"(now {self.experiment.training.lr}), for round {before.round} is the last good state."
            )
        self.state = self._advance(jobs, kept)
        record = self._measure(jobs, kept, [j.client for j, ok in zip(jobs, finite, strict=True) if not ok])
        return record.model_copy(update={"seconds": time.perf_counter() - started})

    def named_tensors(self) -> dict[str, Tensor]:
        """The server's model as named tensors on the CPU."""
        return self.model.layout.unpack(self.state.server.parameters, self.state.server.buffers)

    def _jobs(self) -> list[Job]:
        state, algorithm = self.state, self.experiment.algorithm
        jobs = []
        for client in sample(self.experiment, state.round, self.problem.clients):
            rate = learning_rate(self.experiment, state.round, state.participations.get(client, 0))
            own = state.clients.get(client)
            if own is None:
                own = algorithm.client_state(state.server.parameters)
            jobs.append(Job(client, state.round, self.problem.parts[client], rate, own))
        return jobs

    def _advance(self, jobs: Sequence[Job], kept: Sequence[Outcome]) -> State:
        """Aggregate what is finite; a client that went wrong keeps the state it had."""
        algorithm, before = self.experiment.algorithm, self.state
        updates = [outcome.update for outcome in kept]
        parameters, server_state = algorithm.aggregate(before.server, updates, self.problem.clients)
        buffers = weighted_sum([update.buffers for update in updates], algorithm.shares(updates))
        new = {outcome.update.client: outcome.state for outcome in kept if outcome.state}
        counts = dict(before.participations)
        for job in jobs:
            counts[job.client] = counts.get(job.client, 0) + 1
        return replace(
            before,
            round=before.round + 1,
            server=Server(parameters, buffers, server_state),
            clients={**before.clients, **new},
            participations=counts,
        )

    def _measure(self, jobs: Sequence[Job], kept: Sequence[Outcome], left_out: list[int]) -> Record:
        totals = _add_up([outcome.totals for outcome in kept])
        steps = totals.pop("steps")
        hits = {kind: totals.pop(f"{kind}_hits", None) for kind in ("natural", "virtual")}
        rows = {kind: totals.pop(f"{kind}_rows", 0.0) for kind in ("natural", "virtual")}
        updates = [outcome.update for outcome in kept]
        round_ = self.state.round
        virtual_hits, natural_hits = hits["virtual"], hits["natural"]
        return Record(
            round=round_,
            loss={name: total / steps for name, total in totals.items()},
            train_accuracy=None if natural_hits is None else natural_hits / rows["natural"],
            virtual_accuracy=None if virtual_hits is None else virtual_hits / rows["virtual"],
            drift=self._drift(updates),
            learning_rate=sum(job.rate for job in jobs) / len(jobs),
            samples=self._samples(jobs) + (self.pretraining_samples if round_ == 1 else 0),
            compute=self.problem.compute,
            bytes=self._bytes(jobs, updates),
            clients=[job.client for job in jobs],
            left_out=left_out,
            seconds=0.0,
            **self._evaluate(updates),
        )

    def _evaluate(self, updates: Sequence[Update]) -> dict[str, object]:
        """Accuracies where this round is evaluated; features where it is looked at."""
        round_, experiment, problem = self.state.round, self.experiment, self.problem
        self.evaluation = self.snapshot = None
        looked_at = round_ in experiment.features_at
        if round_ % experiment.evaluate_every and round_ != experiment.rounds and not looked_at:
            return {}
        self.model.load(self.state.server.parameters, self.state.server.buffers)
        self.evaluation = evaluate(self.model, problem.test, problem.classes)
        found: dict[str, object] = {
            "accuracy": self.evaluation.accuracy,
            "natural_accuracy": self.evaluation.natural_accuracy,
            "per_class": self.evaluation.per_class,
        }
        if problem.validation is not None:
            found["validation_accuracy"] = evaluate(self.model, problem.validation, problem.classes).accuracy
        if looked_at:
            self.snapshot = take_snapshot(problem, self.model, self.state.server, updates, self.evaluation)
        return found

    def _drift(self, updates: Sequence[Update]) -> float:
        """1/|S| Σ ‖w̄ − w_i‖ over parameters, w̄ the weighted mean of the client models (section 5.2)."""
        mean = weighted_sum([u.parameters for u in updates], self.experiment.algorithm.shares(updates))
        distances = [torch.linalg.vector_norm(mean - update.parameters) for update in updates]
        return float(torch.stack(distances).mean())

    def _samples(self, jobs: Sequence[Job]) -> int:
        """Images trained on: natural ones once an epoch, B_v virtual ones a step; fillers are not counted."""
        training = self.experiment.training
        virtual = self.experiment.objective.virtual_rows(training.batch_size)
        sizes = [len(job.samples) for job in jobs]
        steps = sum(steps_per_epoch(size, training.batch_size) for size in sizes)
        return training.epochs * (sum(sizes) + steps * virtual)

    def _bytes(self, jobs: Sequence[Job], updates: Sequence[Update]) -> int:
        layout, width = self.model.layout, self.model.parameters.element_size()
        model = layout.parameter_count + layout.buffer_count
        down = len(jobs) * (model + len(self.state.server.state) * layout.parameter_count)
        up = len(jobs) * (model + len(updates[0].message) * layout.parameter_count)
        return width * (down + up)


def _add_up(totals: Sequence[dict[str, Tensor]]) -> dict[str, float]:
    """Sums over clients, brought to the host in one go."""
    names = list(totals[0])
    table = torch.stack([torch.stack([client[name].double() for name in names]) for client in totals])
    return dict(zip(names, table.sum(0).tolist(), strict=True))


def simulate(experiment: Experiment, data_dir: Path | str | None = None) -> Iterator[Record]:
    """Run an experiment, one record a round.

    >>> from vhl import Experiment, simulate
    >>> for record in simulate(Experiment(rounds=2, objective="plain", clients_per_round=1)):
    ...     print(record.round, record.clients != [])
    1 True
    2 True
    """
    yield from Simulation(experiment, data_dir)
