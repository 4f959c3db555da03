"""Lanes: clients of a round, of one experiment or several, trained side by side on one device."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

import torch

from vhl.algorithms.base import Server
from vhl.chance import has_triton
from vhl.config.sections import Engine
from vhl.errors import VHLError
from vhl.training.lane import Lane, Span, Ticket
from vhl.training.making import Maker, wants_compiler
from vhl.training.precision import Precision
from vhl.training.static import Note, Place, Static
from vhl.training.task import Job, Outcome, Task

_LANES = 4  # more gave nothing on an H200
_PAUSE = 1e-4  # seconds between looks at a busy GPU


class Lanes:
    """Takes jobs of any task and trains them, the longest first; :meth:`pump` does the work.

    What a lane needs for a task is made once and kept as long as an experiment uses it: seeds of one
    experiment share it.
    """

    def __init__(
        self,
        engine: Engine,
        precision: Precision,
        on_note: Note = lambda note: None,
        place: Callable[[torch.device], Place] = Place,
    ) -> None:
        """``place`` makes where a lane works on a GPU."""
        gpu = precision.device.type == "cuda"
        for option in ("capture", "kernels", "compile"):
            if not gpu and getattr(engine, option):
                raise VHLError(f"engine.{option} needs a GPU; leave it unset on a CPU.")
        self.precision = precision
        self.capture = gpu if engine.capture is None else engine.capture
        self.kernels = gpu and has_triton() if engine.kernels is None else engine.kernels
        self._engine, self._on_note, self._place = engine, on_note, place
        self._limit = engine.lanes or (_LANES if gpu else 1)
        self._lanes: list[Lane] = []
        self._turn = 0
        self._waiting: list[Ticket] = []
        self._users: Counter[str] = Counter()
        self._makers: dict[str, Maker] = {}
        self.spans: list[Span] | None = None
        """When each job began and ended, where someone wants to know and has put a list here."""

    @property
    def overlaps(self) -> bool:
        """Whether work goes on while the host does something else: on a GPU."""
        return self.precision.device.type == "cuda"

    def static(self) -> Static:
        """One for each network and what is done with it: what cannot be recorded of one may be of another."""
        return Static(self.capture, self._on_note)

    def open(self, task: Task) -> None:
        """Say that jobs of this task will come; :meth:`close` says that no more will."""
        self._users[task.signature] += 1

    def close(self, task: Task) -> None:
        """Forget this task's jobs."""
        self._users[task.signature] -= 1
        self._waiting = [ticket for ticket in self._waiting if ticket.task is not task]
        for lane in self._lanes:
            lane.drop(task)

    def submit(self, task: Task, jobs: Sequence[Job], server: Server) -> list[Ticket]:
        """Hand in the jobs of a round, which start from this server."""
        schedules = task.schedules(jobs)
        tickets = [Ticket(task, job, server, own) for job, own in zip(jobs, schedules, strict=True)]
        self._waiting += tickets
        self._waiting.sort(key=lambda ticket: -ticket.steps)
        if self.spans is not None:
            self.spans += [ticket.span for ticket in tickets]
        return tickets

    def train(self, task: Task, jobs: Sequence[Job], server: Server) -> list[Outcome]:
        """Train these jobs and wait for them; outcomes come in the order of the jobs."""
        self.open(task)
        try:
            tickets = self.submit(task, jobs, server)
            while not all(ticket.done for ticket in tickets):
                self.pump()
        finally:
            self.close(task)
        return [ticket.outcome for ticket in tickets if ticket.outcome is not None]

    def pump(self) -> None:
        """Give free lanes their jobs and busy ones their next steps; on a CPU, train one client."""
        with self.precision.active():
            if not self.overlaps:
                self._train_one()
            elif not self._feed():
                time.sleep(_PAUSE)

    def _train_one(self) -> None:
        """On a CPU lanes take turns, so that nothing depends on how many there are."""
        if self._waiting:
            while len(self._lanes) < self._limit:
                self._lanes.append(Lane(None))
            lane = self._lanes[self._turn % self._limit]
            self._turn += 1
            ticket = self._waiting.pop(0)
            with ticket.takes_errors():
                self._start(lane, ticket)
                lane.train()

    def _feed(self) -> bool:
        """Start jobs and enqueue steps; says whether there was anything to do."""
        if self._waiting and self._may_open() and all(lane.ticket for lane in self._lanes):
            self._lanes.append(Lane(self._place(self.precision.device)))
        for lane in list(self._lanes):
            if lane.ticket is None and self._waiting:
                ticket = self._waiting.pop(0)
                with ticket.takes_errors():
                    self._start_if_it_fits(lane, ticket)
        busy = sorted((lane for lane in self._lanes if lane.ticket), key=lambda lane: -lane.steps)
        moved = [lane.feed() for lane in busy[: self._abreast(busy)]]
        return any(moved)

    def _abreast(self, busy: Sequence[Lane]) -> int:
        """How many lanes to feed, the longest first: so many that all come to an end together.

        A client that has half of all steps to do gets half of the GPU, or it would go on alone at last, and
        one lane alone leaves part of the GPU idle.
        """
        if not busy:
            return 0
        steps = sum(lane.steps for lane in busy) + sum(ticket.steps for ticket in self._waiting)
        return max(2, round(steps / busy[0].steps))

    def _may_open(self) -> bool:
        """Whether another lane is allowed and, where its number is ours to choose, would fit."""
        if len(self._lanes) >= self._limit:
            return False
        if self._engine.lanes or not self._lanes:
            return True
        free, _ = torch.cuda.mem_get_info(self.precision.device)
        return free > 1.5 * max(lane.memory for lane in self._lanes)

    def _start_if_it_fits(self, lane: Lane, ticket: Ticket) -> None:
        """A lane too many is closed again, where their number is ours to choose."""
        try:
            self._start(lane, ticket)
        except torch.OutOfMemoryError:
            if self._engine.lanes or len(self._lanes) == 1:
                raise VHLError(
                    "The GPU's memory does not hold a training step; lower training.batch_size"
                    + (" or engine.lanes." if self._engine.lanes else ".")
                ) from None
            self._waiting.insert(0, ticket)
            self._lanes.remove(lane)
            self._limit = len(self._lanes)
            torch.cuda.empty_cache()

    def _start(self, lane: Lane, ticket: Ticket) -> None:
        lane.start(ticket, self._maker(ticket.task))

    def _maker(self, task: Task) -> Maker:
        """Who makes trainers of this task; where it is new, room is made by what no one uses any more."""
        if task.signature not in self._makers:
            for signature in [s for s, users in self._users.items() if users <= 0]:
                del self._users[signature]
                self._makers.pop(signature, None)
                for lane in self._lanes:
                    lane.forget(signature)
            asked = self._engine.compile
            compile_ = wants_compiler(task, asked, recorded=self.capture, kernels=self.kernels)
            self._makers[task.signature] = Maker(
                task, self.static(), kernels=self.kernels, compile_=compile_, on_note=self._on_note
            )
        return self._makers[task.signature]
