"""Local training of one client after the other, in the same place."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from vhl.algorithms.base import Client, Server, Update, Vectors
from vhl.models.layers.norm import can_weigh, freeze_statistics, weighted_statistics
from vhl.models.vectors import FlatModel
from vhl.training.schedule import Schedule
from vhl.training.static import REHEARSALS, Place, Static
from vhl.training.step import Step, Values, statistics_weights
from vhl.training.task import MOMENTUM, Job, Outcome, Task

Begin = Callable[["Trainer"], None]
"""Gives a trainer a job."""


class Trainer:
    """A bound model and everything a step reads or writes, at addresses that never change."""

    def __init__(self, step: Step, *, frozen: bool = False) -> None:
        """``frozen`` is batch normalisation by the server's statistics."""
        self.task, self._step = step.task, step
        precision, device = self.task.precision, self.task.device
        self.model = self._build()
        self.model.module.train()
        if frozen:
            freeze_statistics(self.model.module)
        self._fewest = _fewest_images(self.task, self.model.module)
        self._network = step.network(self.model.module)
        self._references = {name: self._build() for name in self.task.algorithm.references}
        self._reference_networks = {
            name: step.network(model.module.eval().requires_grad_(False))
            for name, model in self._references.items()
        }
        self.momentum = torch.zeros_like(self.model.parameters)
        self.rate = torch.zeros((), dtype=precision.dtype, device=device)
        self.counter = torch.zeros(1, dtype=torch.int64, device=device)
        self._where = torch.zeros(3, dtype=torch.int64, device=device)  # seed, round and client
        self._schedule: Schedule = {}
        self._client: Client | None = None
        self._names: list[str] = []
        self._totals: Tensor | None = None
        self._rows: list[int] = []
        self._whole: Callable[[], None] = self.step
        self._short: Callable[[int], None] = self.step

    def _build(self) -> FlatModel:
        precision = self.task.precision
        return FlatModel(self.task.build(), self.task.device, precision.dtype, precision.compute_dtype)

    def make_static(self, static: Static, place: Place, begin: Begin) -> None:
        """Make steps as fast as they can be at a place on a GPU; they are rehearsed with a job.

        A recorded step is always as wide as a whole batch, and fillers of a short one weigh nothing. Where
        the network cannot weigh images, a short batch is not recorded but cut to the rows that are there, as
        it is on a CPU.
        """
        if self.task.has_whole_batches:
            begin(self)
            self._whole = static(self.step, place, "Steps")
        if self.task.has_short_batches and static.records("Steps") and can_weigh(self.model.module):
            begin(self)
            weighed = static(partial(self.step, weigh=True), place, "Steps")
            self._short = lambda rows: weighed()
        else:
            self._short = partial(_step_at, place, self)

    def begin(self, job: Job, task: Task, server: Server, schedule: Schedule) -> None:
        """Put a client's start in place; its task takes this trainer's steps, with a seed of its own."""
        self.model.load(server.parameters, server.buffers)
        own = dict(job.state)
        momentum = own.pop(MOMENTUM, None)
        self.momentum.zero_() if momentum is None else self.momentum.copy_(momentum, non_blocking=True)
        self.rate.fill_(job.rate)
        self.counter.zero_()
        for place, number in enumerate((task.seed, job.round, job.client)):
            self._where[place] = number
        if self._totals is not None:
            self._totals.zero_()
        sent = Client(server.parameters, server.state, own, server.buffers, self.model.buffers)
        self._client = self._put(sent)
        for name, model in self._references.items():
            model.load(*self.task.algorithm.reference(name, self._client))
        self._fill(schedule)
        self._rows = self.task.rows(len(job.samples))[::-1]

    def next(self) -> None:
        """Take the next step of the job."""
        rows = self._rows.pop()
        if rows == self.task.batch:
            self._whole()
        else:
            self._short(max(rows, self._fewest))

    def step(self, rows: int | None = None, *, weigh: bool = False) -> None:
        """Gather, augment, forward, objective, backward, corrections, update.

        With ``rows`` a batch is cut to so many natural samples; with ``weigh`` it is whole, and how much each
        sample counts in batch norm is heeded, which is 0 for a filler.
        """
        assert self._client is not None
        loss, values = self.loss(rows, weigh=weigh)
        self.model.differentiate(loss)
        self._step.update(self.model, self.momentum, self.rate, self.counter, self._client)
        if self._totals is None:
            self._names = list(values)
            self._totals = torch.zeros(len(values), dtype=self.rate.dtype, device=self.rate.device)
        self._totals.add_(torch.stack([value.to(self._totals.dtype) for value in values.values()]))

    def loss(self, rows: int | None = None, *, weigh: bool = False) -> tuple[Tensor, Values]:
        """Of the step that comes next, and what is added up over steps; see :class:`Step`."""
        images, used = self._step.gather(self._schedule, self.counter, rows)
        virtual, natural = self.task.virtual_batch, len(used["labels"])
        weights = None
        if weigh or (virtual is not None and virtual.share is not None):
            weights = statistics_weights(used["weights"].to(self.rate.dtype), virtual)
        mosaic = (natural, virtual.tiles) if virtual is not None and virtual.tiles > 1 else ()
        with self.task.precision.autocast(), weighted_statistics(self.model.module, weights):
            features, logits = self._network(images, *mosaic)
            with torch.no_grad():
                for name, network in self._reference_networks.items():
                    used[f"reference.{name}"] = network(images[:natural])[0]["last"]
        return self._step.loss(features, logits, used, self._where, self.counter)

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
        return Outcome(update, state, totals, _all_finite([*_vectors(update), *state.values()]))

    def _put(self, client: Client) -> Client:
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

    def _fill(self, schedule: Schedule) -> None:
        """The rows after the longest client's are for rehearsals, which may go on where a schedule ends."""
        for name, rows in schedule.items():
            if name not in self._schedule:
                shape = (self.task.longest + REHEARSALS, *rows.shape[1:])
                self._schedule[name] = torch.zeros(shape, dtype=rows.dtype, device=self.rate.device)
            self._schedule[name][: len(rows)].copy_(rows, non_blocking=True)

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


def _step_at(place: Place, trainer: Trainer, rows: int) -> None:
    with place.work(), place.own_chance():
        trainer.step(rows)


def _fewest_images(task: Task, module: nn.Module) -> int:
    """How few images a step may have: PyTorch's own batch norm refuses a single value a channel.

    Where it would, a filler is added to the one image that is left. It has no weight in the loss, but it does
    enter that batch norm.
    """
    if not task.has_short_batches or task.virtual_batch is not None or can_weigh(module):
        return 1
    height, width, channels = task.natural.shape
    image = torch.zeros(1, channels, height, width, dtype=task.precision.compute_dtype, device=task.device)
    with torch.random.fork_rng(devices=[]), torch.no_grad(), task.precision.autocast():
        try:
            copy.deepcopy(module)(image)
        except ValueError:
            return 2
    return 1


def _vectors(update: Update) -> list[Tensor]:
    return [update.parameters, update.buffers, *update.message.values()]


def _all_finite(vectors: Sequence[Tensor]) -> Tensor:
    return torch.stack([vector.isfinite().all() for vector in vectors]).all()
