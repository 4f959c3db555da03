"""Local training of one client after the other, in the same place."""

from __future__ import annotations

import torch
from torch import Tensor

from vhl.algorithms.base import Client, Server, Update, Vectors
from vhl.models._network import freeze_statistics, weighted_statistics
from vhl.models.vectors import FlatModel
from vhl.training.capture import REHEARSALS
from vhl.training.step import Draws, Pieces
from vhl.training.task import MOMENTUM, Job, Outcome, Task


class Trainer:
    """A bound model and everything a step reads or writes, at addresses that never change."""

    def __init__(self, task: Task, pieces: Pieces, *, frozen: bool = False) -> None:
        """``frozen`` is batch normalisation by the server's statistics."""
        self.task, self._pieces = task, pieces
        numerics = task.numerics
        self.model = self._build()
        self.model.module.train()
        if frozen:
            freeze_statistics(self.model.module)
        self._network = pieces.network(self.model.module)
        self._references = {name: self._build() for name in task.algorithm.references}
        self._onlookers = {
            name: pieces.network(model.module.eval().requires_grad_(False))
            for name, model in self._references.items()
        }
        self.momentum = torch.zeros_like(self.model.parameters)
        self.rate = torch.zeros((), dtype=numerics.dtype, device=task.device)
        self.counter = torch.zeros(1, dtype=torch.int64, device=task.device)
        self._plan: dict[str, Tensor] = {}
        self._client: Client | None = None
        self._names: list[str] = []
        self._totals: Tensor | None = None

    def _build(self) -> FlatModel:
        numerics = self.task.numerics
        return FlatModel(self.task.build(), self.task.device, numerics.dtype, numerics.compute_dtype)

    def begin(self, job: Job, server: Server, plan: dict[str, Tensor]) -> None:
        """Put a client's start in place; ``plan`` may lie on the host."""
        self.model.load(server.parameters, server.buffers)
        own = dict(job.state)
        momentum = own.pop(MOMENTUM, None)
        self.momentum.zero_() if momentum is None else self.momentum.copy_(momentum, non_blocking=True)
        self.rate.fill_(job.rate)
        self.counter.zero_()
        if self._totals is not None:
            self._totals.zero_()
        sent = Client(server.parameters, server.state, own, server.buffers, self.model.buffers)
        self._client = self._place(sent)
        for name, model in self._references.items():
            model.load(*self.task.algorithm.reference(name, self._client))
        self._fill_plan(plan)

    def step(self) -> None:
        """Gather, augment, forward, objective, backward, corrections, update."""
        assert self._client is not None
        loss, values = self.loss()
        self.model.differentiate(loss)
        self._pieces.update(self.model, self.momentum, self.rate, self.counter, self._client)
        if self._totals is None:
            self._names = list(values)
            self._totals = torch.zeros(len(values), dtype=self.rate.dtype, device=self.rate.device)
        self._totals.add_(torch.stack([value.to(self._totals.dtype) for value in values.values()]))

    def loss(self) -> tuple[Tensor, Draws]:
        """Of the step that comes next, and what is added up over steps; see :class:`Pieces`."""
        images, draws = self._pieces.gather(self._plan, self.counter)
        objective, natural = self.task.objective, len(draws["labels"])
        counted = draws["weights"].to(self.rate.dtype)
        weights = objective.statistics_weights(counted, len(images) - natural)
        mosaic = (natural, objective.tiles) if objective.tiles > 1 else ()
        with self.task.numerics.autocast(), weighted_statistics(self.model.module, weights):
            features, logits = self._network(images, *mosaic)
            with torch.no_grad():
                for name, network in self._onlookers.items():
                    draws[f"reference.{name}"] = network(images[:natural])[0]["last"]
        return self._pieces.judge(features, logits, draws)

    def finish(self, job: Job, task: Task) -> Outcome:
        """What the client sends and keeps, as copies."""
        assert self._client is not None and self._totals is not None
        work, model = task.work(job), self.model
        message, state = task.algorithm.finish(model.parameters, self._client, work)
        message, state = self._copies(message), self._copies(state)
        if task.training.keep_momentum:
            state[MOMENTUM] = self.momentum.clone()
        update = Update(job.client, work, model.parameters.clone(), model.buffers.clone(), message)
        totals = dict(zip(self._names, self._totals.clone(), strict=True))
        return Outcome(update, state, totals, _all_finite(update))

    def _place(self, client: Client) -> Client:
        """The client's vectors, copied to where the last client's were."""
        place = self._client or Client(
            torch.empty_like(client.start),
            {name: torch.empty_like(vector) for name, vector in client.received.items()},
            {name: vector.to(client.start.device, copy=True) for name, vector in client.state.items()},
            torch.empty_like(client.start_buffers),
            client.buffers,
        )
        place.start.copy_(client.start)
        place.start_buffers.copy_(client.start_buffers)
        for name, vector in client.received.items():
            place.received[name].copy_(vector)
        for name, vector in client.state.items():
            place.state[name].copy_(vector, non_blocking=True)
        return place

    def _fill_plan(self, plan: dict[str, Tensor]) -> None:
        """The rows after the longest client's are for rehearsals, which may go on where a plan ends."""
        steps = self.task.steps(self.task.longest) + REHEARSALS
        for name, rows in plan.items():
            if name not in self._plan:
                shape = (steps, *rows.shape[1:])
                self._plan[name] = torch.zeros(shape, dtype=rows.dtype, device=self.rate.device)
            self._plan[name][: len(rows)].copy_(rows, non_blocking=True)

    def _copies(self, vectors: Vectors) -> Vectors:
        """An algorithm may return what it was given, but that is where the next client will be."""
        assert self._client is not None
        ours = [self.model.parameters, self.model.buffers, self._client.start, self._client.start_buffers]
        ours += [*self._client.received.values(), *self._client.state.values()]
        places = {vector.untyped_storage().data_ptr() for vector in ours}
        return {
            name: vector.clone() if vector.untyped_storage().data_ptr() in places else vector
            for name, vector in vectors.items()
        }


def _all_finite(update: Update) -> Tensor:
    vectors = [update.parameters, update.buffers, *update.message.values()]
    return torch.stack([vector.isfinite().all() for vector in vectors]).all()
