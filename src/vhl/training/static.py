"""Running the same work again and again: recorded as a CUDA graph where that can be done.

Replaying a graph costs the host microseconds, whatever it holds. But what is recorded must not ask the host
(no ``.item()``, no branch on a value), and works on tensors that stay where they are.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch

Work = Callable[[], None]
Note = Callable[[str], None]
"""Takes a sentence that a user should read."""
Result = TypeVar("Result")

REHEARSALS = 2
"""Runs before recording: libraries set themselves up in the first, and kernels are compiled."""


class RecordingError(Exception):
    """Something in the work needs the host while it runs."""


class Place:
    """Where work runs on a GPU: a stream, and where its random numbers come from.

    Each has its own, because libraries keep their workspace by stream: two graphs recorded on one stream
    would share it, and could not run side by side.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream, self.chance = torch.cuda.Stream(device), torch.Generator(device)

    @contextmanager
    def enqueue(self) -> Iterator[None]:
        """What is enqueued inside runs here, after what this place was given before."""
        with torch.cuda.stream(self.stream):
            yield

    @contextmanager
    def work(self) -> Iterator[None]:
        """The same, but also after what the main stream has been given so far.

        Without that wait, memory that was freed while the main stream still reads it would be overwritten.
        """
        self.stream.wait_stream(torch.cuda.default_stream(self.stream.device))
        with self.enqueue():
            yield

    @contextmanager
    def own_chance(self) -> Iterator[None]:
        """Let PyTorch's functions without a generator, as dropout, draw from this place's."""
        default = torch.cuda.default_generators[self.chance.device.index or 0]
        before = default.graphsafe_get_state()
        default.graphsafe_set_state(self.chance.graphsafe_get_state())
        try:
            yield
        finally:
            default.graphsafe_set_state(before)

    def event(self, *, timed: bool = False) -> torch.cuda.Event:
        """A mark behind what this place was given so far."""
        event = torch.cuda.Event(enable_timing=timed)
        event.record(self.stream)
        return event

    def record(self, work: Work) -> Work:
        """The work as a graph; it is rehearsed before, so what it changes has to be put right afterwards."""
        graph = torch.cuda.CUDAGraph()
        with self.enqueue(), self.own_chance():
            for _ in range(REHEARSALS):
                work()
            self.stream.synchronize()
            # By this thread alone, so that what other threads do meanwhile is not recorded.
            recording = torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local")
            try:
                with _no_collection(), recording:
                    work()
            except Exception as error:
                if isinstance(_first(error), torch.OutOfMemoryError):
                    raise _first(error) from None
                raise RecordingError(first_line(error)) from error

        def replay() -> None:
            with self.enqueue():
                graph.replay()

        return replay


class Static:
    """Makes work static: recorded where that is wanted and works, else as it is, with one note."""

    def __init__(self, record: bool, on_note: Note = lambda note: None) -> None:
        self._record, self._on_note = record, on_note
        self._failed: set[str] = set()

    def __call__(self, work: Work, place: Place | None, what: str) -> Work:
        """``what`` is the work's name in a note, as "Steps". On a CPU (no place) work stays as it is."""
        if place is None:
            return work
        if self.records(what):
            try:
                return place.record(work)
            except RecordingError as error:
                self._failed.add(what)
                self._on_note(f"{what} run uncaptured, which is slower: {error}")

        def run() -> None:
            with place.work(), place.own_chance():
                work()

        return run

    def records(self, what: str) -> bool:
        """Whether work of this name is recorded, as far as is known."""
        return self._record and what not in self._failed


@contextmanager
def _no_collection() -> Iterator[None]:
    """A graph of an earlier run that is collected as garbage meanwhile spoils the recording."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def at_once(work: Sequence[Callable[[], Result]], streams: Sequence[torch.cuda.Stream]) -> list[Result]:
    """What pieces of work give, each run on a stream of its own, as a part of the current stream's work."""
    now, results = torch.cuda.current_stream(), []
    for piece, stream in zip(work, streams, strict=True):
        stream.wait_stream(now)
        with torch.cuda.stream(stream):
            results.append(piece())
    for stream in streams:
        now.wait_stream(stream)
    return results


def first_line(error: BaseException) -> str:
    """What went wrong first, in one line."""
    return (str(_first(error)).strip().splitlines() or [type(error).__name__])[0]


def _first(error: BaseException) -> BaseException:
    while error.__context__ is not None:
        error = error.__context__
    return error
