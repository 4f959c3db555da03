"""Lanes: clients of a round, of one experiment or several, trained side by side on one device."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vhl.algorithms.base import Server
from vhl.engine.capture import Place
from vhl.engine.compiler import has_triton
from vhl.engine.numerics import Numerics
from vhl.engine.recipe import Note, Recipe, Step
from vhl.engine.task import Job, Outcome, Task
from vhl.engine.trainer import Trainer
from vhl.errors import VHLError
from vhl.experiment import Engine

_LANES = 4  # more gave nothing on an H200
_AHEAD = 4  # steps given to the GPU before it is through with earlier ones: enough to keep it busy
_PAUSE = 1e-4  # seconds between looks at a busy GPU

Plan = dict[str, Tensor]
Mark = float | torch.cuda.Event
"""A moment: in seconds on a CPU, in a stream on a GPU."""


@dataclass(eq=False)
class Ticket:
    """A job handed in, and its outcome once that is there."""

    task: Task
    job: Job
    server: Server
    outcome: Outcome | None = None
    ended: torch.cuda.Event | None = None

    @property
    def steps(self) -> int:
        return self.task.steps(len(self.job.samples))

    @property
    def done(self) -> bool:
        return self.outcome is not None and (self.ended is None or self.ended.query())


class Lanes:
    """Takes jobs of any task and trains them, the longest first; :meth:`pump` does the work.

    What a lane needs for a task is made once and kept as long as an experiment uses it: seeds of one
    experiment share it.
    """

    def __init__(self, engine: Engine, numerics: Numerics, on_note: Note = lambda note: None) -> None:
        gpu = numerics.device.type == "cuda"
        for option in ("capture", "kernels", "compile"):
            if not gpu and getattr(engine, option):
                raise VHLError(f"engine.{option} needs a GPU; leave it unset on a CPU.")
        self.engine, self.numerics, self.on_note = engine, numerics, on_note
        self.capture = gpu if engine.capture is None else engine.capture
        self.kernels = has_triton() if engine.kernels is None else engine.kernels
        self._limit = engine.lanes or (_LANES if gpu else 1)
        self._lanes: list[Lane] = []
        self._next = 0
        self._waiting: list[Ticket] = []
        self._users: Counter[str] = Counter()
        self._recipes: dict[str, Recipe] = {}
        self.spans: list[tuple[Mark, Mark]] | None = None
        """When each job began and ended, where someone wants to know and has put a list here."""
        self._drawing = ThreadPoolExecutor(1) if gpu else None
        self._drawn: dict[tuple[int, int, int], Future[Plan]] = {}

    def open(self, task: Task) -> None:
        """Say that jobs of this task will come; :meth:`close` says that no more will."""
        self._users[task.signature] += 1

    def close(self, task: Task) -> None:
        self._users[task.signature] -= 1
        self._waiting = [ticket for ticket in self._waiting if ticket.task is not task]
        self._drawn = {key: plan for key, plan in self._drawn.items() if key[0] != id(task)}

    def submit(self, task: Task, jobs: Sequence[Job], server: Server) -> list[Ticket]:
        """Hand in jobs that start from this server."""
        tickets = [Ticket(task, job, server) for job in jobs]
        self._waiting += tickets
        self._waiting.sort(key=lambda ticket: -ticket.steps)
        return tickets

    @property
    def overlaps(self) -> bool:
        """Whether work goes on while the host does something else: on a GPU."""
        return self._drawing is not None

    def prepare(self, task: Task, round_: int, client: int, samples: np.ndarray) -> None:
        """Draw the chance of a job that will come, while the GPU works on others."""
        if self._drawing is not None:
            drawn = self._drawing.submit(self._draw, task, round_, client, samples)
            self._drawn[id(task), round_, client] = drawn

    def train(self, task: Task, jobs: Sequence[Job], server: Server) -> list[Outcome]:
        """Train these jobs and wait for them; outcomes come in the order of the jobs."""
        self.open(task)
        tickets = self.submit(task, jobs, server)
        while not all(ticket.done for ticket in tickets):
            self.pump()
        self.close(task)
        return [ticket.outcome for ticket in tickets if ticket.outcome is not None]

    def pump(self) -> None:
        """Give free lanes their jobs and busy ones their next steps; on a CPU, train one client."""
        with self.numerics.active():
            if self._drawing is None:
                self._pump_one()
            elif not self._feed():
                time.sleep(_PAUSE)

    def plan(self, ticket: Ticket) -> Plan:
        task, job = ticket.task, ticket.job
        drawn = self._drawn.pop((id(task), job.round, job.client), None)
        return self._draw(task, job.round, job.client, job.samples) if drawn is None else drawn.result()

    def recipe(self, task: Task) -> Recipe:
        """How steps of this task are taken; where it is new, room is made by what no one uses any more."""
        if task.signature not in self._recipes:
            for signature in [s for s, users in self._users.items() if users <= 0]:
                del self._users[signature]
                self._recipes.pop(signature, None)
                for lane in self._lanes:
                    lane.forget(signature)
            self._recipes[task.signature] = Recipe(
                task,
                capture=self.capture,
                kernels=self.kernels,
                compile_=self.engine.compile,
                on_note=self.on_note,
            )
        return self._recipes[task.signature]

    def _pump_one(self) -> None:
        """On a CPU lanes take turns, so that nothing depends on how many there are."""
        if self._waiting:
            while len(self._lanes) < self._limit:
                self._lanes.append(Lane(self, None))
            lane = self._lanes[self._next % self._limit]
            self._next += 1
            lane.start(self._waiting.pop(0))
            while lane.feed():
                pass

    def _feed(self) -> bool:
        """Start jobs and enqueue steps; says whether there was anything to do."""
        if self._waiting and self._may_open() and all(lane.ticket for lane in self._lanes):
            self._lanes.append(Lane(self, Place(self.numerics.device)))
        for lane in self._lanes:
            if lane.ticket is None and self._waiting:
                lane.start(self._waiting.pop(0))
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
        return max(2, round(steps / max(1, busy[0].steps)))

    def _may_open(self) -> bool:
        """Whether another lane is allowed and, where its number is ours to choose, would fit."""
        if len(self._lanes) >= self._limit:
            return False
        if self.engine.lanes or not self._lanes:
            return True
        free, _ = torch.cuda.mem_get_info(self.numerics.device)
        return free > 1.5 * max(lane.memory for lane in self._lanes)

    def _draw(self, task: Task, round_: int, client: int, samples: np.ndarray) -> Plan:
        arrays = task.plan(round_, client, samples)
        plan = {name: torch.from_numpy(rows) for name, rows in arrays.items()}
        return plan if self._drawing is None else {name: rows.pin_memory() for name, rows in plan.items()}


class Lane:
    """Trains one client at a time, on a GPU in a stream of its own."""

    def __init__(self, lanes: Lanes, place: Place | None) -> None:
        self._lanes, self._place = lanes, place
        self._trainers: dict[str, tuple[Trainer, Step]] = {}
        self.steps = 0
        """Of the job, still to be fed."""
        self._began: Mark = 0.0
        self._flying: deque[torch.cuda.Event] = deque()
        self.ticket: Ticket | None = None
        self.memory = 0
        """GPU memory that the last trainer took."""

    def start(self, ticket: Ticket) -> None:
        """Take a job: its steps are still to be fed."""
        plan, task = self._lanes.plan(ticket), ticket.task
        with self._here():
            self._wait_for_others()
            if task.signature not in self._trainers:
                self._trainers[task.signature] = self._make(ticket, plan)
            trainer, _ = self._trainers[task.signature]
            trainer.begin(ticket.job, ticket.server, plan)
        if self._place is not None:
            self._place.chance.manual_seed(task.chance(ticket.job))
        self._began = self._mark()
        self.ticket, self.steps = ticket, ticket.steps

    def feed(self) -> bool:
        """Enqueue a step where that makes sense, and the end of the job; says whether anything was done."""
        if self.ticket is None:
            return False
        if self._place is None:
            self._train_at_once(self.ticket)
            return False
        while self._flying and self._flying[0].query():
            self._flying.popleft()
        if len(self._flying) >= _AHEAD:
            return False
        trainer, step = self._trainers[self.ticket.task.signature]
        with self._here():
            step()
            self._flying.append(self._place.stream.record_event())
            self.steps -= 1
            if self.steps == 0:
                self._wait_for_others()
                self.ticket.outcome = trainer.finish(self.ticket.job, self.ticket.task)
                self.ticket.ended = self._place.stream.record_event()
                self._end()
        return True

    def forget(self, signature: str) -> None:
        self._trainers.pop(signature, None)

    def _train_at_once(self, ticket: Ticket) -> None:
        trainer, step = self._trainers[ticket.task.signature]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(ticket.task.chance(ticket.job))
            for _ in range(self.steps):
                step()
        ticket.outcome = trainer.finish(ticket.job, ticket.task)
        self._end()

    def _end(self) -> None:
        if self._lanes.spans is not None:
            self._lanes.spans.append((self._began, self._mark()))
        self.ticket = None

    def _mark(self) -> Mark:
        if self._place is None:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._place.stream)
        return event

    def _make(self, ticket: Ticket, plan: Plan) -> tuple[Trainer, Step]:
        recipe, device = self._lanes.recipe(ticket.task), ticket.task.device
        before = torch.cuda.memory_reserved(device) if self._place else 0
        made = recipe.trainer(lambda trainer: trainer.begin(ticket.job, ticket.server, plan), self._place)
        self.memory = torch.cuda.memory_reserved(device) - before if self._place else 0
        return made

    @contextmanager
    def _here(self) -> Iterator[None]:
        with nullcontext() if self._place is None else torch.cuda.stream(self._place.stream):
            yield

    def _wait_for_others(self) -> None:
        """What the main stream reads may have been freed for us to write to; it must be through with it."""
        if self._place is not None:
            stream = self._place.stream
            stream.wait_stream(torch.cuda.default_stream(stream.device))
