"""Recording and replaying, with what stands in for a GPU."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from vhl.training.capture import REHEARSALS, Captured, CaptureError, first_line


@pytest.mark.parametrize(
    ("chain", "line"),
    [
        ([ValueError("one line")], "one line"),
        ([ValueError("\n first\nsecond\n")], "first"),
        ([ValueError()], "ValueError"),
        ([KeyError("cause"), RuntimeError("compiler: a lot\nof text")], "'cause'"),
    ],
)
def test_what_went_wrong_first_in_one_line(chain, line):
    error = None
    for following in chain:
        following.__context__, error = error, following
    assert first_line(error) == line


class _Generator:
    """A source of random numbers on a GPU: its state is a list of one word."""

    device = torch.device("cuda")

    def __init__(self, state):
        self.state = [state]

    def graphsafe_get_state(self):
        return self.state

    def graphsafe_set_state(self, state):
        self.state = state


@pytest.fixture
def recording(monkeypatch, place):
    """What a recording needs of a GPU; ``replays`` counts, ``chance`` is everyone's source of numbers."""
    found = SimpleNamespace(replays=0, chance=_Generator("everyone's"), modes=[], place=place)
    place.chance = _Generator("its own")

    def replay():
        found.replays += 1

    @contextmanager
    def graph(_, stream, capture_error_mode):
        found.modes.append((stream, capture_error_mode))
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=replay))
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "default_generators", [found.chance])
    return found


def test_a_recorded_function_is_rehearsed_once_recorded_and_replayed(recording):
    drawn_from = []
    step = Captured(lambda: drawn_from.append(recording.chance.state), recording.place)
    assert drawn_from == [["its own"]] * (REHEARSALS + 1)
    assert recording.chance.state == ["everyone's"]  # of which others draw
    # of this thread alone: another may be drawing plans
    assert recording.modes == [(recording.place.stream, "thread_local")]
    step()
    step()
    assert recording.replays == 2 and len(drawn_from) == REHEARSALS + 1


@pytest.mark.parametrize("call", [1, REHEARSALS, REHEARSALS + 1])
def test_only_what_fails_in_the_recording_itself_is_a_matter_of_capture(recording, call):
    calls = Counter()

    def fail():
        calls["all"] += 1
        if calls["all"] == call:
            raise ZeroDivisionError("first line\nsecond line")

    expected = CaptureError if call > REHEARSALS else ZeroDivisionError
    with pytest.raises(expected, match="first line") as caught:
        Captured(fail, recording.place)
    assert type(caught.value) is expected and recording.chance.state == ["everyone's"]
    assert (str(caught.value) == "first line") == (expected is CaptureError)


def test_memory_that_runs_out_while_recording_is_what_it_is(recording):
    calls = []

    def fill():
        calls.append(1)
        if len(calls) > REHEARSALS:
            try:
                raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")
            except torch.OutOfMemoryError as error:
                raise RuntimeError("operation failed due to a previous error during capture") from error

    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        Captured(fill, recording.place)


class _Cycle:
    """Garbage that only the collector finds."""

    def __init__(self):
        self.itself = self


@pytest.mark.parametrize("collecting", [True, False], ids=["collecting", "not collecting"])
def test_no_garbage_is_collected_while_recording(recording, collecting):
    """It may be a graph of an earlier run, which must not go away just then."""
    left, thresholds = [], gc.get_threshold()

    def step():
        garbage = weakref.ref(_Cycle())
        kept = [[] for _ in range(1000)]  # far more than the collector waits for
        left.append(garbage() is not None and bool(kept))

    (gc.enable if collecting else gc.disable)()
    gc.set_threshold(10)
    try:
        Captured(step, recording.place)
        assert gc.isenabled() == collecting
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
    assert left == [not collecting] * REHEARSALS + [True]


def test_garbage_is_collected_again_after_a_recording_that_fails(recording):
    def fail():
        if not gc.isenabled():
            raise ZeroDivisionError

    with pytest.raises(CaptureError):
        Captured(fail, recording.place)
    assert gc.isenabled()
