"""Recording and replaying, with what stands in for a GPU."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from vhl.training.static import REHEARSALS, Place, RecordingError, Static, first_line


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


# --- recording -----------------------------------------------------------------------------------------


class _Generator:
    """A source of random numbers on a GPU: its state is a list of one word."""

    device = torch.device("cuda")

    def __init__(self, state):
        self.state = [state]

    def graphsafe_get_state(self):
        return self.state

    def graphsafe_set_state(self, state):
        self.state = state


class _Place(Place):
    """A place on no GPU, which records as on one."""

    def __init__(self):
        self.stream, self.chance = SimpleNamespace(synchronize=lambda: None), _Generator("its own")

    @contextmanager
    def enqueue(self):
        yield


@pytest.fixture
def recording(monkeypatch):
    """What a recording needs of a GPU; ``replays`` counts, ``chance`` is everyone's source of numbers."""
    found = SimpleNamespace(replays=0, chance=_Generator("everyone's"), modes=[], place=_Place())

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


def test_recorded_work_is_rehearsed_once_recorded_and_replayed(recording):
    drawn_from = []
    step = recording.place.record(lambda: drawn_from.append(recording.chance.state))
    assert drawn_from == [["its own"]] * (REHEARSALS + 1)
    assert recording.chance.state == ["everyone's"]  # of which others draw
    assert recording.modes == [(recording.place.stream, "thread_local")]  # of this thread alone
    step()
    step()
    assert recording.replays == 2 and len(drawn_from) == REHEARSALS + 1


@pytest.mark.parametrize("call", [1, REHEARSALS, REHEARSALS + 1])
def test_only_what_fails_in_the_recording_itself_is_a_matter_of_recording(recording, call):
    calls = Counter()

    def fail():
        calls["all"] += 1
        if calls["all"] == call:
            raise ZeroDivisionError("first line\nsecond line")

    expected = RecordingError if call > REHEARSALS else ZeroDivisionError
    with pytest.raises(expected, match="first line") as caught:
        recording.place.record(fail)
    assert type(caught.value) is expected and recording.chance.state == ["everyone's"]
    assert (str(caught.value) == "first line") == (expected is RecordingError)


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
        recording.place.record(fill)


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
        recording.place.record(step)
        assert gc.isenabled() == collecting
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
    assert left == [not collecting] * REHEARSALS + [True]


def test_garbage_is_collected_again_after_a_recording_that_fails(recording):
    def fail():
        if not gc.isenabled():
            raise ZeroDivisionError

    with pytest.raises(RecordingError):
        recording.place.record(fail)
    assert gc.isenabled()


# --- recorded or not -----------------------------------------------------------------------------------


class _Watching(Place):
    """Where work is done, and what is asked of it; ``error`` is what comes of recording."""

    def __init__(self, error=None):
        self.error, self.asked, self.inside = error, [], []

    @contextmanager
    def _within(self, name):
        self.inside.append(name)
        yield
        self.inside.remove(name)

    def work(self):
        return self._within("work")

    def own_chance(self):
        return self._within("chance")

    def record(self, work):
        self.asked.append(work)
        if self.error is not None:
            raise self.error
        return lambda: self.asked.append("replay")


@pytest.fixture
def notes():
    return []


def test_on_a_cpu_work_stays_as_it_is(notes):
    def work():
        raise AssertionError("nothing is rehearsed")

    assert Static(True, notes.append)(work, None, "Steps") is work and notes == []


def test_what_can_be_recorded_is(notes):
    static, place, work = Static(True, notes.append), _Watching(), [].clear
    static(work, place, "Steps")()
    assert place.asked == [work, "replay"] and notes == [] and static.records("Steps")


def test_what_shall_not_be_recorded_runs_at_its_place(notes):
    static, place, seen = Static(False, notes.append), _Watching(), []
    static(lambda: seen.append(sorted(place.inside)), place, "Steps")()
    assert place.asked == [] and seen == [["chance", "work"]] and notes == [] and not static.records("Steps")


def test_what_cannot_be_recorded_runs_as_it_is_and_says_so_once(notes):
    """It is not tried again; work of another name is."""
    static, place, seen = Static(True, notes.append), _Watching(RecordingError("asks the host")), []
    for name in ("Steps", "Steps", "Evaluations"):
        static(lambda: seen.append(sorted(place.inside)), place, name)()
    assert seen == [["chance", "work"]] * 3 and len(place.asked) == 2
    assert notes == [
        "Steps run uncaptured, which is slower: asks the host",
        "Evaluations run uncaptured, which is slower: asks the host",
    ]
    assert not static.records("Steps") and static.records("Steps ahead")


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), ZeroDivisionError("the work's own")])
def test_other_errors_are_no_matter_of_recording(notes, error):
    static = Static(True, notes.append)
    with pytest.raises(type(error)):
        static(print, _Watching(error), "Steps")
    assert notes == [] and static.records("Steps")
