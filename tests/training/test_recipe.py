"""How steps are taken, with what stands in for a GPU and its compiler."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from vhl.training.capture import REHEARSALS, CaptureError
from vhl.training.recipe import Recipe

from vhl.objectives.plain import Plain
from vhl.training import recipe
from vhl.training.step import plain_pieces
from vhl.training.task import Job
from vhl.training.trainer import Trainer

JOB = Job(0, 0, np.arange(20), 0.1, {})


def a_recipe(task, notes, **ways):
    return Recipe(
        task, **{"capture": False, "kernels": False, "compile_": None, **ways}, on_note=notes.append
    )


@pytest.fixture
def make(begin, server_of, place):
    """A lane's trainer and step by a recipe, rehearsed with a job; ``begun`` lists who was given it."""

    def trainer(recipe_, task, begun=None):
        def start(trainer):
            if begun is not None:
                begun.append(trainer)
            begin(trainer, JOB, server_of(task))

        return recipe_.trainer(start, place)

    return trainer


@pytest.fixture
def assert_trains(train, server_of):
    """What a recipe made trains a client as plain steps do."""

    def check(task, trainer, step):
        server = server_of(task)
        found = train(trainer, JOB, server, step).update.parameters
        assert found.equal(train(Trainer(task, plain_pieces(task)), JOB, server).update.parameters)

    return check


class FakeCaptured:
    """Rehearses as the real one does, then calls what it cannot record."""

    def __init__(self, function, place):
        self.function = function
        for _ in range(REHEARSALS):
            function()

    def __call__(self):
        self.function()


# --- when the compiler is used -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capture", "kernels", "network", "compile_", "expected"),
    [
        (True, True, "batch", None, False),  # kernels of ours are there in seconds
        (True, True, "group", None, True),
        (True, True, "foreign", None, True),
        (False, True, "foreign", None, False),  # compiling pays where the rest is fast already
        (True, False, "foreign", None, False),
        (True, True, "batch", True, True),
        (False, False, "batch", True, True),
        (True, True, "foreign", False, False),
    ],
)
def test_when_the_compiler_is_used(monkeypatch, small_task, capture, kernels, network, compile_, expected):
    calls = Counter()

    def noted(name, pieces, *_):
        calls[name] += 1
        return replace(pieces)

    for name in ("compiled_pieces", "fused_pieces"):
        monkeypatch.setattr(recipe, name, partial(noted, name))
    a_recipe(small_task(network), [], capture=capture, kernels=kernels, compile_=compile_)
    assert (calls["compiled_pieces"], calls["fused_pieces"]) == (int(expected), int(kernels))


@pytest.fixture
def compiled(monkeypatch):
    """A compiler that leaves all as it is; counts the calls of what it made."""
    calls = Counter()

    def compile_all(pieces):
        def judge(*arguments):
            calls["judge"] += 1
            return pieces.judge(*arguments)

        return replace(pieces, judge=judge)

    monkeypatch.setattr(recipe, "compiled_pieces", compile_all)
    return calls


def test_what_can_be_compiled_is(small_task, server_of, make, train, compiled):
    """Both lanes use what the compiler made, and it is tried before the first job begins."""
    task, notes = small_task(), []
    found = a_recipe(task, notes, compile_=True)
    for number in (1, 2):
        trainer, step = make(found, task)
        assert compiled["judge"] == number + (number - 1) * 5
        train(trainer, JOB, server_of(task), step)
    assert compiled["judge"] == 2 * (1 + 5) and notes == []


def test_on_a_cpu_nothing_is_rehearsed(small_task):
    begun = []
    trainer, step = a_recipe(small_task(), []).trainer(begun.append, None)
    assert begun == [] and step == trainer.step


# --- what cannot be compiled or captured ---------------------------------------------------------------


class _CompilerError(Exception):
    """What PyTorch's compiler raises."""


def break_at(piece):
    """Pieces of which one cannot be compiled."""

    def fail(*_):
        raise _CompilerError("Graph break: the objective asks the host.\nDeveloper debug context: much more")

    return lambda pieces: replace(pieces, **{piece: fail})


@pytest.mark.parametrize("capture", [False, True])
@pytest.mark.parametrize("piece", ["judge", "network", "gather", "update"])
def test_what_cannot_be_compiled_runs_uncompiled_and_says_so_once(
    monkeypatch, small_task, make, assert_trains, piece, capture
):
    monkeypatch.setattr(recipe, "compiled_pieces", break_at(piece))
    monkeypatch.setattr(recipe, "Captured", FakeCaptured)
    task, notes = small_task(), []
    found = a_recipe(task, notes, compile_=True, capture=capture)
    for _ in range(2):  # two lanes
        trainer, step = make(found, task)
        assert isinstance(step, FakeCaptured) == capture
        assert_trains(task, trainer, step)
    assert notes == ["Steps run uncompiled, which is slower: Graph break: the objective asks the host."]


class _Broken(Plain):
    def loss(self, batch):
        raise ZeroDivisionError("the objective's own mistake")


@pytest.mark.parametrize("compile_", [True, False])
@pytest.mark.parametrize("capture", [True, False])
def test_an_error_of_the_part_itself_is_raised_as_itself(
    monkeypatch, small_task, make, assert_trains, compile_, capture
):
    """The compiler would hide it in an error of its own; and it is no news that it was not compiled."""
    monkeypatch.setattr(recipe, "compiled_pieces", break_at("judge"))
    monkeypatch.setattr(recipe, "Captured", FakeCaptured)
    task, notes, begun = small_task(objective=_Broken()), [], []
    found = a_recipe(task, notes, compile_=compile_, capture=capture)
    with pytest.raises(ZeroDivisionError, match="own mistake"):
        assert_trains(task, *make(found, task, begun))
    assert len(begun) == capture + compile_  # tried once each way, if there is anything to rehearse
    if capture or not compile_:
        assert notes == []


@pytest.mark.parametrize("compile_", [True, False])
def test_too_little_memory_is_no_matter_of_how_steps_are_taken(
    monkeypatch, small_task, make, compiled, compile_
):
    """The lanes decide what then; the next one tries again the same way."""

    def full(function, place):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    task, notes, begun = small_task(), [], []
    found = a_recipe(task, notes, compile_=compile_, capture=True)
    monkeypatch.setattr(recipe, "Captured", full)
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            make(found, task, begun)
    assert len(begun) == 2 and notes == []
    monkeypatch.setattr(recipe, "Captured", FakeCaptured)
    make(found, task)
    assert compiled["judge"] == (REHEARSALS if compile_ else 0)


@pytest.mark.parametrize("compile_", [True, False])
def test_what_cannot_be_captured_runs_uncaptured_and_says_so_once(
    monkeypatch, small_task, make, assert_trains, compiled, compile_
):
    tried = []

    class Refusing(FakeCaptured):
        def __init__(self, function, place):
            super().__init__(function, place)
            tried.append(function)
            raise CaptureError("operation not permitted when stream is capturing")

    monkeypatch.setattr(recipe, "Captured", Refusing)
    task, notes = small_task(), []
    found = a_recipe(task, notes, capture=True, compile_=compile_)
    for _ in range(2):
        assert_trains(task, *make(found, task))
    note = "Steps run uncaptured, which is slower: operation not permitted when stream is capturing"
    assert notes == [note] and len(tried) == 1
