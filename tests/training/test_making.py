"""How steps are taken, with what stands in for a GPU and its compiler."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from engine_fixtures import FakePlace
from vhl.algorithms.moon import MOON
from vhl.objectives.naive import Naive
from vhl.objectives.plain import Plain
from vhl.training import fused
from vhl.training.fused import CompiledStep, FusedStep
from vhl.training.making import Maker, wants_compiler
from vhl.training.static import REHEARSALS, RecordingError, Static
from vhl.training.step import Step
from vhl.training.trainer import Trainer

NOTE = "Steps run uncompiled, which is slower: Graph break: the objective asks the host."


@pytest.fixture
def notes():
    return []


@pytest.fixture
def job(jobs_of):
    """A client with four whole batches and a short one."""
    (found,) = jobs_of((0, 18))
    return found


@pytest.fixture
def make(gpu, begin, server_of, job, notes):
    """Makes a trainer at a place of the stand-in; ``begun`` lists who was given a job to rehearse."""

    def trainer(maker, task, place=None, begun=None):
        def start(trainer):
            if begun is not None:
                begun.append(trainer)
            begin(trainer, job, server_of(task))

        return maker.trainer(start, place or gpu.place())

    return trainer


@pytest.fixture
def a_maker(notes):
    def maker(task, capture=False, kernels=False, compile_=False):
        static = Static(capture, notes.append)
        return Maker(task, static, kernels=kernels, compile_=compile_, on_note=notes.append)

    return maker


@pytest.fixture
def assert_trains(train, server_of, job):
    """A trainer trains a client as plain steps do; recorded, its short batch is weighed and not cut."""

    def check(task, trainer):
        server = server_of(task)
        found, expected = train(trainer, job, server), train(Trainer(Step(task)), job, server)
        torch.testing.assert_close(found.update.parameters, expected.update.parameters, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(found.update.buffers, expected.update.buffers, rtol=1e-4, atol=1e-6)

    return check


# --- when the compiler is used -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recorded", "kernels", "network", "asked", "expected"),
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
def test_when_the_compiler_is_used(small_task, recorded, kernels, network, asked, expected):
    assert wants_compiler(small_task(network), asked, recorded=recorded, kernels=kernels) == expected


class _CompilerError(Exception):
    """What PyTorch's compiler raises."""


@pytest.fixture
def compiler(monkeypatch):
    """What stands in for the compiler: ``calls`` of what it made, and what is ``broken`` by its name."""
    found = SimpleNamespace(calls=Counter(), broken=set())

    def compiled(function):
        name = getattr(function, "__name__", "network")

        def run(*arguments, **options):
            found.calls[name] += 1
            if name in found.broken:
                message = "Graph break: the objective asks the host.\nDeveloper debug context: much more"
                raise _CompilerError(message)
            return function(*arguments, **options)

        return run

    monkeypatch.setattr(fused, "compiled", compiled)
    return found


@pytest.mark.parametrize(
    ("network", "capture", "names"),
    [
        ("batch", False, {"loss": 1 + 4}),  # tried before the first job begins; a short batch is cut
        ("group", False, {"loss": 1 + 4, "network": 1 + 4}),
        ("group", True, {"loss": 2 * REHEARSALS + 5, "network": 2 * REHEARSALS + 5}),  # weighed
    ],
)
def test_what_is_compiled(
    small_task, compiler, a_maker, make, train, job, server_of, notes, network, capture, names
):
    """The loss, and networks that have no kernels of ours; never for a batch of another length."""
    task = small_task(network)
    found = a_maker(task, compile_=True, capture=capture)
    train(make(found, task), job, server_of(task))
    assert compiler.calls == names and notes == []


def test_references_and_virtual_images_are_compiled_too(
    small_task, make_stream, compiler, a_maker, make, train, job, server_of
):
    """MOON's two references see the natural images alone: three calls a step, of two lengths."""
    virtual = make_stream(np.zeros((9, 8, 8, 2), np.uint8), np.arange(9) % 3)
    task = small_task("group", virtual=virtual, objective=Naive(virtual_batch=5), algorithm=MOON())
    start = server_of(task)
    job = replace(job, state=MOON().client_state(start))
    found = Maker(task, Static(False), kernels=False, compile_=True, on_note=print).trainer(print, None)
    train(found, job, start)
    assert compiler.calls == {"loss": 4, "network": 12}


@pytest.mark.parametrize("kernels", [True, False])
def test_gathering_and_descending_are_not_compiled(small_task, compiler, kernels):
    step = (FusedStep if kernels else Step)(small_task())
    found = CompiledStep(step)
    assert found.gather == step.gather and found.update == step.update and found.loss != step.loss


@pytest.mark.parametrize(("kernels", "kind"), [(True, FusedStep), (False, Step)])
def test_kernels_are_used_where_they_are_asked_for(small_task, a_maker, kernels, kind):
    maker = a_maker(small_task("group"), kernels=kernels)
    assert type(maker.trainer(print, None)._step) is kind


def test_on_a_cpu_nothing_is_rehearsed(small_task, a_maker):
    begun = []
    a_maker(small_task(), capture=True).trainer(begun.append, None)
    assert begun == []


@pytest.mark.parametrize(
    ("network", "sizes", "times"),
    [
        ("batch", (20, 7), 2),  # whole batches and short ones are two graphs
        ("batch", (20, 8), 1),
        ("batch", (3, 1), 1),
        ("group", (20, 7), 2),
        ("pytorch", (20, 7), 1),  # its batch norm cannot weigh images: short batches are cut
    ],
)
def test_each_graph_is_rehearsed_from_a_fresh_start(
    small_task, gpu, begin, jobs_of, server_of, a_maker, notes, network, sizes, times
):
    task, begun = small_task(network, sizes=sizes), []
    (job,) = jobs_of((0, sizes[0]))

    def start(trainer):
        begun.append(trainer)
        begin(trainer, job, server_of(task))

    trainer = a_maker(task, capture=True).trainer(start, gpu.place())
    assert begun == [trainer] * times and notes == []


def test_short_batches_of_a_network_that_cannot_weigh_are_cut(
    small_task, gpu, make, a_maker, train, job, server_of
):
    """The four whole steps are replayed, and the same comes of it as on a CPU, to the bit."""
    task = small_task("pytorch")
    found = train(make(a_maker(task, capture=True), task), job, server_of(task))
    expected = train(Trainer(Step(task)), job, server_of(task))
    assert gpu.steps == {0: 4}
    assert found.update.parameters.equal(expected.update.parameters)
    assert found.update.buffers.equal(expected.update.buffers)


# --- what cannot be compiled or recorded ---------------------------------------------------------------


@pytest.mark.parametrize("capture", [False, True])
@pytest.mark.parametrize("part", ["loss", "network"])
def test_what_cannot_be_compiled_runs_uncompiled_and_says_so_once(
    small_task, gpu, make, a_maker, assert_trains, compiler, notes, part, capture
):
    compiler.broken = {part}
    task = small_task("group")
    found = a_maker(task, compile_=True, capture=capture)
    for lane in range(2):
        assert_trains(task, make(found, task))
        assert gpu.steps[lane] == (5 if capture else 0)
    assert notes == [NOTE] and compiler.calls[part] == 1


class _Broken(Plain):
    def loss(self, batch):
        raise ZeroDivisionError("the objective's own mistake")


@pytest.mark.parametrize("compile_", [True, False])
@pytest.mark.parametrize("capture", [True, False])
def test_an_error_of_the_part_itself_is_raised_as_itself(
    small_task, make, a_maker, assert_trains, compiler, notes, compile_, capture
):
    """The compiler would hide it in an error of its own; and it is no news that it was not compiled."""
    compiler.broken = {"loss"}
    task, begun = small_task(objective=_Broken()), []
    found = a_maker(task, compile_=compile_, capture=capture)
    with pytest.raises(ZeroDivisionError, match="own mistake"):
        assert_trains(task, make(found, task, begun=begun))
    assert len(set(begun)) == 1 + compile_  # a trainer each way
    if capture or not compile_:
        assert notes == []


@pytest.mark.parametrize("compile_", [True, False])
def test_too_little_memory_is_no_matter_of_how_steps_are_taken(
    small_task, gpu, make, a_maker, compiler, notes, compile_
):
    """The lanes decide what then; the next one tries again the same way."""
    task, begun, gpu.fits = small_task(), [], 0
    found = a_maker(task, compile_=compile_, capture=True)
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            make(found, task, begun=begun)
    assert len(begun) == 2 and notes == []
    gpu.fits = 100
    make(found, task)
    assert compiler.calls["loss"] == (2 * REHEARSALS if compile_ else 0)


@pytest.mark.parametrize("compile_", [True, False])
def test_what_cannot_be_recorded_runs_unrecorded_and_says_so_once(
    small_task, gpu, make, a_maker, assert_trains, compiler, notes, compile_
):
    tried = []

    class Refusing(FakePlace):
        def record(self, work):
            super().record(work)
            tried.append(work)
            raise RecordingError("operation not permitted when stream is capturing")

    task = small_task()
    found = a_maker(task, capture=True, compile_=compile_)
    for number in range(2):
        assert_trains(task, make(found, task, Refusing(gpu, number)))
    note = "Steps run uncaptured, which is slower: operation not permitted when stream is capturing"
    assert notes == [note] and len(tried) == 1
