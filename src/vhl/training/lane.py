"""A lane: where clients are trained one after the other; on a GPU several lanes run side by side."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch

from vhl.algorithms.base import Server
from vhl.training.making import Maker
from vhl.training.schedule import Schedule
from vhl.training.static import Place
from vhl.training.task import MOMENTUM, Job, Outcome, Task
from vhl.training.trainer import Trainer

_AHEAD = 4  # steps given to the GPU before it is through with earlier ones: enough to keep it busy

Mark = float | torch.cuda.Event
"""A moment: in seconds on a CPU, in a stream on a GPU."""


@dataclass
class Span:
    """When a job began and ended, as far as it has."""

    began: Mark | None = None
    ended: Mark | None = None


@dataclass(eq=False)
class Ticket:
    """A job handed in, and its outcome once that is there."""

    task: Task
    job: Job
    server: Server
    schedule: Schedule
    """Kept until the job is done, for a GPU may still be reading it."""
    outcome: Outcome | None = None
    error: Exception | None = None
    """What went wrong with it: for its owner, not for whoever pumps."""
    span: Span = field(default_factory=Span)

    @property
    def kind(self) -> tuple[str, ...]:
        """What its trainer must be made for: the task's steps, and the vectors that they find."""
        return (
            self.task.signature,
            *sorted(self.server.state),
            "",
            *sorted(self.job.state.keys() - {MOMENTUM}),
            "frozen" if self.frozen else "",
        )

    @property
    def frozen(self) -> bool:
        return self.task.training.freezes(self.job.round)

    @property
    def steps(self) -> int:
        return self.task.steps(len(self.job.samples))

    @property
    def done(self) -> bool:
        """Whether the outcome is there; what went wrong is raised here."""
        if self.error is not None:
            raise self.error
        ended = self.span.ended
        return ended is not None and (isinstance(ended, float) or ended.query())

    @contextmanager
    def takes_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.error = error


class Lane:
    """Trains one client at a time, on a GPU in a stream of its own."""

    def __init__(self, place: Place | None) -> None:
        """``place`` is on a GPU, or there is none."""
        self._place = place
        self._trainers: dict[tuple[str, ...], Trainer] = {}
        self._flying: deque[torch.cuda.Event] = deque()
        self.ticket: Ticket | None = None
        self.steps = 0
        """Of the ticket's job, still to be fed."""
        self.memory = 0
        """GPU memory that the last trainer took."""

    def start(self, ticket: Ticket, maker: Maker) -> None:
        """Take a job: its steps are still to be fed."""
        task, place = ticket.task, self._place
        with nullcontext() if place is None else place.work():
            if ticket.kind not in self._trainers:
                self._trainers[ticket.kind] = self._make(ticket, maker)
            self._trainers[ticket.kind].begin(ticket.job, ticket.task, ticket.server, ticket.schedule)
        if place is not None:
            place.chance.manual_seed(task.network_seed(ticket.job))
        ticket.span.began = self._mark()
        self.ticket, self.steps = ticket, ticket.steps

    def feed(self) -> bool:
        """Enqueue a step where that makes sense, and the end of the job; says whether anything was done."""
        if self.ticket is None or self._place is None:
            return False
        while self._flying and self._flying[0].query():
            self._flying.popleft()
        if len(self._flying) >= _AHEAD:
            return False
        ticket, trainer = self.ticket, self._trainers[self.ticket.kind]
        self.steps -= 1
        if self.steps == 0:
            self.ticket = None
        with ticket.takes_errors():
            with self._place.enqueue():
                trainer.next()
            self._flying.append(self._place.event())
            if self.ticket is None:
                with self._place.work():
                    self._finish(ticket)
        return True

    def train(self) -> None:
        """All steps of the job at once, on a CPU; chance inside the network is the client's own."""
        assert self.ticket is not None
        ticket, self.ticket = self.ticket, None
        trainer = self._trainers[ticket.kind]
        with torch.random.fork_rng(devices=[]):
            # not torch.manual_seed, which takes longer than a small step: it prepares for other devices too
            torch.default_generator.manual_seed(ticket.task.network_seed(ticket.job))
            for _ in range(self.steps):
                trainer.next()
        self._finish(ticket)

    def forget(self, signature: str) -> None:
        """Drop what belongs to such tasks."""
        self._trainers = {kind: made for kind, made in self._trainers.items() if kind[0] != signature}

    def drop(self, task: Task) -> None:
        """Go on to another job if this one is of that task."""
        if self.ticket is not None and self.ticket.task is task:
            self.ticket = None

    def _finish(self, ticket: Ticket) -> None:
        ticket.outcome = self._trainers[ticket.kind].finish(ticket.job, ticket.task)
        ticket.span.ended = self._mark()

    def _make(self, ticket: Ticket, maker: Maker) -> Trainer:
        device = ticket.task.device
        before = torch.cuda.memory_reserved(device) if self._place else 0

        def begin(trainer: Trainer) -> None:
            trainer.begin(ticket.job, ticket.task, ticket.server, ticket.schedule)

        made = maker.trainer(begin, self._place, frozen=ticket.frozen)
        self.memory = torch.cuda.memory_reserved(device) - before if self._place else 0
        return made

    def _mark(self) -> Mark:
        return time.perf_counter() if self._place is None else self._place.event(timed=True)
