"""Recording work as a CUDA graph: replaying one costs the host microseconds, whatever it holds."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

import torch

Result = TypeVar("Result")

REHEARSALS = 2
"""Runs before recording: libraries set themselves up in the first, and kernels are compiled."""


class CaptureError(Exception):
    """Something in the work needs the host while it runs."""


class Place:
    """Where work runs on a GPU: a stream, and where its random numbers come from.

    Each has its own, because libraries keep their workspace by stream: two graphs recorded on one would share
    it.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream, self.chance = torch.cuda.Stream(device), torch.Generator(device)

    @contextmanager
    def work(self) -> Iterator[None]:
        """What is enqueued inside runs here, after what the main stream has been given so far.

        Memory that was freed while the main stream still reads it is given to the next who asks.
        """
        self.stream.wait_stream(torch.cuda.default_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            yield


class Captured:
    """A function without arguments, recorded and replayed; it works on tensors that stay where they are."""

    def __init__(self, function: Callable[[], None], place: Place) -> None:
        self._stream, self._graph = place.stream, torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream), random_numbers_from(place.chance):
            for _ in range(REHEARSALS):
                function()
            self._stream.synchronize()
            try:
                with _without_collection(), _recorded(self._graph, self._stream):
                    function()
            except Exception as error:
                if isinstance(_first(error), torch.OutOfMemoryError):
                    raise _first(error) from None
                raise CaptureError(first_line(error)) from error

    def __call__(self) -> None:
        with torch.cuda.stream(self._stream):
            self._graph.replay()


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


def _recorded(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> AbstractContextManager[None]:
    """What is enqueued inside, by this thread alone: another may be drawing plans into pinned memory."""
    return torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local")


@contextmanager
def _without_collection() -> Iterator[None]:
    """A graph of an earlier run that is collected as garbage meanwhile spoils the recording."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@contextmanager
def random_numbers_from(generator: torch.Generator) -> Iterator[None]:
    """Let PyTorch's functions without a generator, as dropout, draw from this one."""
    default = torch.cuda.default_generators[generator.device.index or 0]
    before = default.graphsafe_get_state()
    default.graphsafe_set_state(generator.graphsafe_get_state())
    try:
        yield
    finally:
        default.graphsafe_set_state(before)


def first_line(error: BaseException) -> str:
    """What went wrong first, in one line."""
    return (str(_first(error)).strip().splitlines() or [type(error).__name__])[0]


def _first(error: BaseException) -> BaseException:
    while error.__context__ is not None:
        error = error.__context__
    return error
