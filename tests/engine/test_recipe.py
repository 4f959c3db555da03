"""How steps are taken: what a GPU would do, with what stands in for it on any machine."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from vhl.algorithms.base import Server
from vhl.algorithms.fedavg import FedAvg
from vhl.algorithms.fedprox import FedProx
from vhl.algorithms.scaffold import SCAFFOLD
from vhl.data.images import ImageSet, ImageStream
from vhl.engine import compiler, fusion, lanes, recipe
from vhl.engine.capture import REHEARSALS, Captured, CaptureError, Place, first_line
from vhl.engine.evaluation import Fetch
from vhl.engine.fusion import compiled_pieces, fused_pieces, has_kernels
from vhl.engine.lanes import Lanes
from vhl.engine.numerics import Numerics
from vhl.engine.recipe import Recipe
from vhl.engine.step import plain_pieces
from vhl.engine.stream import Stream
from vhl.engine.task import Job, Task
from vhl.engine.trainer import Trainer
from vhl.engine.vectors import FlatModel
from vhl.experiment import Engine
from vhl.models.cnn import CNN
from vhl.objectives.naive import Naive
from vhl.objectives.plain import Plain
from vhl.objectives.vhl import VHL

CPU, GPU = torch.device("cpu"), torch.device("cuda")
rng = np.random.default_rng(4)
IMAGES, LABELS = rng.integers(0, 256, (20, 8, 8, 2), np.uint8), rng.integers(0, 3, 20)
VIRTUAL, VIRTUAL_LABELS = rng.integers(0, 256, (9, 8, 8, 2), np.uint8), np.arange(9) % 3


def network(norm="batch"):
    torch.manual_seed(2)
    return CNN(width=4, norm=norm).build(6, 2, (8, 8))


class _Foreign(nn.Module):
    """A network with layers and chance of its own."""

    def __init__(self):
        torch.manual_seed(2)
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(128, 6))

    def forward(self, images):
        return {"last": images}, self.layers(images)


@pytest.fixture
def task(make_task, make_stream):
    """Clients of up to twenty images in batches of 4."""

    def make(build=network, **settings):
        settings = {"training": {"batch_size": 4}, **settings}
        return make_task(build, make_stream(IMAGES, LABELS), **settings)

    return make


def a_job(count=20, client=0, state=None):
    return Job(client, 0, np.arange(count), 0.1, state or {})


def a_server(task, **state):
    model = FlatModel(task.build(), CPU)
    return Server(model.parameters.clone(), model.buffers.clone(), state)


# --- settings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["capture", "kernels", "compile"])
def test_what_needs_a_gpu_is_refused_on_a_cpu(digit_simulation, complains, option):
    with complains(f"engine.{option}", "GPU", "unset"):
        digit_simulation(engine={option: True})
    assert digit_simulation(engine={option: False}).run_round().round == 1


def test_what_is_unset_follows_the_device(monkeypatch):
    for triton in (True, False):
        monkeypatch.setattr(lanes, "has_triton", lambda triton=triton: triton)
        found = Lanes(Engine(), Numerics(GPU, "bf16"))
        assert (found.capture, found.kernels, found.overlaps) == (True, triton, True)
        chosen = Lanes(Engine(capture=False, kernels=not triton), Numerics(GPU, "bf16"))
        assert (chosen.capture, chosen.kernels) == (False, not triton)


def test_a_cpu_beside_a_gpu_is_still_a_cpu(monkeypatch):
    """Triton is there, but device = cpu: kernels cannot touch its tensors."""
    monkeypatch.setattr(lanes, "has_triton", lambda: True)
    found = Lanes(Engine(), Numerics(CPU, "fp32"))
    assert (found.capture, found.kernels, found.overlaps) == (False, False, False)


@pytest.mark.parametrize(("engine", "count"), [({}, 1), ({"lanes": 1}, 1), ({"lanes": 3}, 3)])
def test_each_lane_has_a_network(task, engine, count):
    """On a CPU they take turns."""
    built = []

    def build():
        built.append(network())
        return built[-1]

    ours = task(build)
    jobs = [a_job(8, client) for client in range(5)]
    server = a_server(ours)
    built.clear()
    Lanes(Engine(**engine), ours.numerics).train(ours, jobs, server)
    assert len(built) == count


# --- what cannot be compiled or captured ---------------------------------------------------------------


class FakePlace(Place):
    """A place whose stream is none; its chance is a generator of the CPU."""

    def __init__(self, number=0, event=None):
        self.number, self.chance = number, torch.Generator()
        self.stream = SimpleNamespace(
            device=GPU, wait_stream=lambda other: None, synchronize=lambda: None, record_event=event
        )


@contextmanager
def numbers_from(generator):
    """As on a GPU: PyTorch's own chance is this generator's for a while."""
    before = torch.get_rng_state()
    torch.set_rng_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(torch.get_rng_state())
        torch.set_rng_state(before)


@pytest.fixture
def place(monkeypatch):
    monkeypatch.setattr(recipe, "random_numbers_from", numbers_from)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: None)
    return FakePlace()


def a_recipe(task, notes, **ways):
    return Recipe(
        task, **{"capture": False, "kernels": False, "compile_": None, **ways}, on_note=notes.append
    )


def finish(made, job, server):
    """Train a job with a trainer and a step that a recipe made."""
    trainer, step = made
    begin(trainer, job, server)
    for _ in range(trainer.task.steps(len(job.samples))):
        step()
    return trainer.finish(job, trainer.task)


def begin(trainer, job, server):
    plan = trainer.task.plan(job.round, job.client, job.samples)
    trainer.begin(job, server, {name: torch.from_numpy(rows) for name, rows in plan.items()})


def plainly(task, job, server):
    trainer = Trainer(task, plain_pieces(task))
    return finish((trainer, trainer.step), job, server)


class _CompilerError(Exception):
    """What PyTorch's compiler raises."""


def break_at(piece):
    """Pieces of which one cannot be compiled."""

    def fail(*_):
        raise _CompilerError("Graph break: the objective asks the host.\nDeveloper debug context: much more")

    return lambda pieces: replace(pieces, **{piece: fail})


@pytest.mark.parametrize("capture", [False, True])
@pytest.mark.parametrize("piece", ["judge", "network", "gather", "update"])
def test_what_cannot_be_compiled_runs_uncompiled_and_says_so_once(monkeypatch, task, place, piece, capture):
    monkeypatch.setattr(recipe, "compiled_pieces", break_at(piece))
    monkeypatch.setattr(recipe, "Captured", FakeCaptured)
    ours, notes = task(), []
    found = a_recipe(ours, notes, compile_=True, capture=capture)
    job, server = a_job(), a_server(ours)
    for _ in range(2):  # two lanes
        made = found.trainer(lambda trainer: begin(trainer, job, server), place)
        assert isinstance(made[1], FakeCaptured) == capture
        expected = plainly(ours, job, server).update.parameters
        assert finish(made, job, server).update.parameters.equal(expected)
    assert notes == ["Steps run uncompiled, which is slower: Graph break: the objective asks the host."]


class _Broken(Plain):
    def loss(self, batch):
        raise ZeroDivisionError("the objective's own mistake")


@pytest.mark.parametrize("compile_", [True, False])
@pytest.mark.parametrize("capture", [True, False])
def test_an_error_of_the_part_itself_is_raised_as_itself(monkeypatch, task, place, compile_, capture):
    """The compiler would hide it in an error of its own; and it is no news that it was not compiled."""
    monkeypatch.setattr(recipe, "compiled_pieces", break_at("judge"))
    monkeypatch.setattr(recipe, "Captured", FakeCaptured)
    ours, notes, begun = task(objective=_Broken()), [], []
    found = a_recipe(ours, notes, compile_=compile_, capture=capture)

    def start(trainer):
        begun.append(trainer)
        begin(trainer, a_job(), a_server(ours))

    with pytest.raises(ZeroDivisionError, match="own mistake"):
        finish(found.trainer(start, place), a_job(), a_server(ours))
    assert len(begun) == capture + compile_  # tried once each way, if there is anything to rehearse
    if capture or not compile_:
        assert notes == []


@pytest.mark.parametrize("compile_", [True, False])
def test_too_little_memory_is_no_matter_of_how_steps_are_taken(monkeypatch, task, place, compile_):
    """The lanes decide what then; the next one tries again the same way."""
    calls = Counter()

    def compile_all(pieces):
        def judge(*arguments):
            calls["compiled"] += 1
            return pieces.judge(*arguments)

        return replace(pieces, judge=judge)

    def full(function, place):
        calls["captured"] += 1
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(recipe, "compiled_pieces", compile_all)
    ours, notes = task(), []
    found = a_recipe(ours, notes, compile_=compile_, capture=True)
    for _ in range(2):
        monkeypatch.setattr(recipe, "Captured", full)
        with pytest.raises(torch.OutOfMemoryError):
            found.trainer(lambda trainer: begin(trainer, a_job(), a_server(ours)), place)
    assert calls == {"captured": 2} and notes == []
    monkeypatch.setattr(recipe, "Captured", FakeCaptured)
    found.trainer(lambda trainer: begin(trainer, a_job(), a_server(ours)), place)
    assert calls["compiled"] == (REHEARSALS if compile_ else 0)


def test_what_can_be_compiled_is(monkeypatch, task, place):
    """Both lanes use what the compiler made, and it is tried before the first job begins."""
    used = Counter()

    def compile_all(pieces):
        def judge(*arguments):
            used["judge"] += 1
            return pieces.judge(*arguments)

        return replace(pieces, judge=judge)

    monkeypatch.setattr(recipe, "compiled_pieces", compile_all)
    ours, notes = task(), []
    found = a_recipe(ours, notes, compile_=True)
    job, server = a_job(), a_server(ours)
    for number in (1, 2):
        made = found.trainer(lambda trainer: begin(trainer, job, server), place)
        assert used["judge"] == number + (number - 1) * 5
        finish(made, job, server)
    assert used["judge"] == 2 * (1 + 5) and notes == []


class FakeCaptured:
    """Rehearses as the real one does, then calls what it cannot record."""

    def __init__(self, function, place):
        self.function = function
        for _ in range(REHEARSALS):
            function()

    def __call__(self):
        self.function()


@pytest.mark.parametrize("compile_", [True, False])
def test_what_cannot_be_captured_runs_uncaptured_and_says_so_once(monkeypatch, task, place, compile_):
    tried = []

    class Refusing(FakeCaptured):
        def __init__(self, function, place):
            super().__init__(function, place)
            tried.append(function)
            raise CaptureError("operation not permitted when stream is capturing")

    monkeypatch.setattr(recipe, "Captured", Refusing)
    monkeypatch.setattr(recipe, "compiled_pieces", lambda pieces: replace(pieces))
    ours, notes = task(), []
    found = a_recipe(ours, notes, capture=True, compile_=compile_)
    job, server = a_job(), a_server(ours)
    for _ in range(2):
        made = found.trainer(lambda trainer: begin(trainer, job, server), place)
        expected = plainly(ours, job, server).update.parameters
        assert finish(made, job, server).update.parameters.equal(expected)
    note = "Steps run uncaptured, which is slower: operation not permitted when stream is capturing"
    assert notes == [note] and len(tried) == 1


def test_on_a_cpu_nothing_is_rehearsed(task):
    ours, begun = task(), []
    trainer, step = a_recipe(ours, []).trainer(begun.append, None)
    assert begun == [] and step == trainer.step


@pytest.mark.parametrize(
    ("capture", "kernels", "build", "compile_", "expected"),
    [
        (True, True, network, None, False),  # kernels of ours are there in seconds
        (True, True, partial(network, "group"), None, True),
        (True, True, _Foreign, None, True),
        (False, True, _Foreign, None, False),  # compiling pays where the rest is fast already
        (True, False, _Foreign, None, False),
        (True, True, network, True, True),
        (False, False, network, True, True),
        (True, True, _Foreign, False, False),
    ],
)
def test_when_the_compiler_is_used(monkeypatch, task, capture, kernels, build, compile_, expected):
    calls = Counter()

    def noted(name):
        def pieces(given, *_):
            calls[name] += 1
            return replace(given)

        return pieces

    for name in ("compiled_pieces", "fused_pieces"):
        monkeypatch.setattr(recipe, name, noted(name))
    a_recipe(task(build), [], capture=capture, kernels=kernels, compile_=compile_)
    assert (calls["compiled_pieces"], calls["fused_pieces"]) == (int(expected), int(kernels))


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
    """A source of random numbers on a GPU: its state is a list of one number."""

    device = GPU

    def __init__(self, state):
        self.state = [state]

    def graphsafe_get_state(self):
        return self.state

    def graphsafe_set_state(self, state):
        self.state = state


@pytest.fixture
def recording(monkeypatch):
    """What a recording needs of a GPU; ``replays`` counts, ``chance`` is everyone's source of numbers."""
    found = SimpleNamespace(replays=0, chance=_Generator("everyone's"), modes=[])

    def replay():
        found.replays += 1

    @contextmanager
    def graph(_, stream, capture_error_mode):
        found.modes.append((stream, capture_error_mode))
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=replay))
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "default_generators", [found.chance])
    found.place = FakePlace()
    found.place.chance = _Generator("its own")
    return found


def test_a_recorded_function_is_rehearsed_once_recorded_and_replayed(recording):
    drawn_from = []
    step = Captured(lambda: drawn_from.append(recording.chance.state), recording.place)
    assert drawn_from == [["its own"]] * (REHEARSALS + 1)
    assert recording.chance.state == ["everyone's"]  # of which others draw
    assert recording.modes == [
        (recording.place.stream, "thread_local")
    ]  # another thread may be drawing plans
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


# --- the compiler --------------------------------------------------------------------------------------


def test_our_networks_with_batch_norm_have_kernels():
    assert has_kernels(network()) and not has_kernels(network("group")) and not has_kernels(_Foreign())


@pytest.mark.parametrize(
    ("build", "expected"), [(network, False), (partial(network, "group"), True), (_Foreign, True)]
)
def test_a_network_is_compiled_where_there_is_no_kernel(monkeypatch, task, build, expected):
    monkeypatch.setattr(fusion, "compiled", lambda function: ("compiled", function))
    plain = plain_pieces(task(build))
    found, module = compiled_pieces(plain), build()
    assert found.judge == ("compiled", plain.judge)
    assert found.network(module) == (("compiled", module) if expected else module)
    assert found.gather is plain.gather and found.update is plain.update


@pytest.fixture
def graphs(monkeypatch):
    """Counts what is handed to the compiler's back end, and computes it as it is."""
    import torch._dynamo
    import torch._inductor.config

    found = []

    def backend(graph, _):
        found.append(graph)
        return graph.forward

    dynamo, inductor = torch._dynamo.config, torch._inductor.config
    limits = {name: getattr(dynamo, name) for name in ("recompile_limit", "accumulated_recompile_limit")}
    log = logging.getLogger("torch._inductor")
    level = log.level
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    with dynamo.patch(limits), inductor.patch(fallback_random=inductor.fallback_random):  # set back
        yield found
    log.setLevel(level)
    torch._dynamo.reset()


def test_every_shape_is_compiled_for_itself(graphs):
    """A reduction for any shape would be slower than one for this shape."""
    ours = compiler.compiled(lambda x: (x * 2).sum())
    for rows in (3, 4, 5, 6, 3, 4):
        assert float(ours(torch.ones(rows))) == 2 * rows
    assert len(graphs) == 4


def test_what_cannot_be_compiled_whole_is_an_error(graphs):
    ours = compiler.compiled(lambda x: x * 2 if x.sum().item() > 0 else x)
    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        ours(torch.ones(3))


def test_kernels_need_a_gpu_and_triton(monkeypatch):
    for gpu, triton in ((True, True), (True, False), (False, True)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
        monkeypatch.setattr(
            compiler.importlib.util, "find_spec", lambda name, triton=triton: object() if triton else None
        )
        assert compiler.has_triton.__wrapped__() == (gpu and triton)  # not the remembered answer


# --- our kernels ---------------------------------------------------------------------------------------


@pytest.fixture
def stand_ins(monkeypatch):
    """The two kernels as operations of PyTorch, and who was told to use that of batch normalisation."""

    def make_images(stream, counter, index, chance, out):
        step = int(counter)
        images = stream.batch(index[step], {name: rows[step] for name, rows in chance.items()})
        out.copy_(images.permute(0, 2, 3, 1))
        return stream.labels[index[step]]

    def sgd(weights, gradient, momentum, lowered, counter, rate, *, decay, keep):
        momentum.mul_(keep).add_(gradient + decay * weights)
        weights.sub_(rate * momentum)
        if lowered is not None:
            lowered.copy_(weights)
        counter.add_(1)

    fused = []
    monkeypatch.setitem(sys.modules, "vhl.engine._kernels", SimpleNamespace(make_images=make_images, sgd=sgd))
    monkeypatch.setattr(fusion, "fuse", fused.append)
    return fused


class _Noisy(Naive):
    """Virtual images, and chance of its own in every step."""

    def draws(self, rng, steps, batch, classes, features):
        return {"noise": rng.standard_normal((steps, batch), np.float32)}

    def loss(self, batch):
        noise = batch.draws["noise"] * batch.logits[: len(batch.labels), 0]
        return {**super().loss(batch), "noise": (noise * batch.weights).sum()}


@pytest.mark.parametrize("precision", ["fp64", "bf16"])
@pytest.mark.parametrize("objective", [Plain(), VHL(virtual_batch=5), _Noisy()])
@pytest.mark.parametrize("algorithm", [FedAvg(), FedProx(mu=0.5), SCAFFOLD()])
def test_fused_steps_are_plain_steps(task, stand_ins, algorithm, objective, precision):
    """Whatever the kernels take over, the rest of the step is the same: a whole client agrees."""
    numerics = Numerics(CPU, precision)
    augmented = ImageStream(crop=2, flip=True, cutout=3)
    natural, virtual = (
        Stream(
            ImageSet(pixels, np.asarray(labels)),
            augmented,
            (np.zeros(2), np.ones(2)),
            CPU,
            dtype=numerics.dtype,
        )
        for pixels, labels in ((IMAGES, LABELS), (VIRTUAL, VIRTUAL_LABELS))
    )
    training = {"batch_size": 4, "epochs": 2, "weight_decay": 0.1, "momentum": 0.5, "keep_momentum": True}
    ours = replace(
        task(virtual=virtual, objective=objective, algorithm=algorithm, training=training),
        natural=natural,
        numerics=numerics,
    )
    model = FlatModel(ours.build(), CPU, numerics.dtype)
    own = {"control": model.parameters / 10} if algorithm.name == "scaffold" else {}
    received = {name: vector / 3 for name, vector in own.items()}
    server, job = Server(model.parameters, model.buffers, received), a_job(15, state=own)
    pieces = fused_pieces(plain_pieces(ours), ours)
    trainer = Trainer(ours, pieces)
    assert stand_ins == [trainer.model.module]
    found, expected = finish((trainer, trainer.step), job, server), plainly(ours, job, server)
    tolerance = {"rtol": 1e-9, "atol": 1e-12} if precision == "fp64" else {"rtol": 0.05, "atol": 0.02}
    for one, other in (
        (found.update.parameters, expected.update.parameters),
        (found.update.buffers, expected.update.buffers),
        (found.state["engine.momentum"], expected.state["engine.momentum"]),
    ):
        torch.testing.assert_close(one, other, **tolerance)
    assert set(found.totals) == set(expected.totals)
    for name in found.totals:
        torch.testing.assert_close(found.totals[name], expected.totals[name], **tolerance)


def test_images_are_made_where_the_network_reads_them(task, make_stream, stand_ins):
    """Natural ones first, channels last, in the type of the network; labels beside them."""
    ours = replace(
        task(virtual=make_stream(VIRTUAL, VIRTUAL_LABELS), objective=VHL(virtual_batch=5)),
        numerics=Numerics(CPU, "bf16"),
    )
    plan = {name: torch.from_numpy(rows) for name, rows in ours.plan(0, 0, np.arange(20)).items()}
    plain = plain_pieces(ours)
    for step in (0, 3):
        counter = torch.tensor([step])
        images, draws = fused_pieces(plain, ours).gather(plan, counter)
        expected, expected_draws = plain.gather(plan, counter)
        assert images.equal(expected) and images.dtype == torch.bfloat16 and images.shape == (9, 2, 8, 8)
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert expected.is_contiguous(memory_format=torch.channels_last)
        assert draws["labels"].tolist() == LABELS[plan["index"][step]].tolist()
        assert draws["virtual_labels"].tolist() == VIRTUAL_LABELS[plan["virtual"][step]].tolist()
        assert set(draws) == set(expected_draws)


@pytest.mark.parametrize(("algorithm", "times"), [(FedAvg(), 0), (FedProx(), 0), (SCAFFOLD(), 1)])
def test_weights_that_are_corrected_are_lowered_again(task, stand_ins, algorithm, times):
    """The kernel writes the shorter copy itself; only what an algorithm changes after it has to be redone."""
    ours = replace(task(algorithm=algorithm), numerics=Numerics(CPU, "bf16"))
    trainer = Trainer(ours, fused_pieces(plain_pieces(ours), ours))
    model, refreshed = trainer.model, []
    refresh = model.refresh
    model.refresh = lambda: refreshed.append(refresh())
    ones = torch.ones_like(model.parameters)
    begin(trainer, a_job(state={"control": ones}), a_server(ours, control=5 * ones))
    refreshed.clear()
    trainer.step()
    assert len(refreshed) == times
    assert model.lowered.equal(model.parameters.bfloat16())


# --- lanes of a GPU ------------------------------------------------------------------------------------


class FakeGPU:
    """Streams whose work is done at once, but seen to be done only when ``through`` says so."""

    def __init__(self):
        self.through = True
        self.steps = Counter()
        """Replays of captured steps, by lane."""
        self.places = []
        self.free, self.need = 100, 10
        """Memory, and what a lane takes of it."""

    def place(self, device):
        assert device == GPU
        self.places.append(FakePlace(len(self.places), self.event))
        return self.places[-1]

    def event(self, **_):
        seen = [self.through]

        def query():
            seen[0] = seen[0] or self.through
            return seen[0]

        return SimpleNamespace(query=query, record=lambda stream: None)

    def captured(self, function, place):
        self.free -= self.need

        def once():
            with numbers_from(place.chance):
                function()

        for _ in range(REHEARSALS):
            once()

        def replay():
            self.steps[place.number] += 1
            once()

        return replay


@pytest.fixture
def gpu(monkeypatch, place):
    fake = FakeGPU()
    monkeypatch.setattr(lanes, "Place", fake.place)
    monkeypatch.setattr(lanes, "_PAUSE", 0)
    monkeypatch.setattr(recipe, "Captured", fake.captured)
    monkeypatch.setattr(torch.cuda, "Event", fake.event)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (fake.free, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 100 - fake.free)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    return fake


def gpu_lanes(**engine):
    return Lanes(Engine(**engine), Numerics(GPU, "fp32"))


JOBS = [(4, 3), (2, 12), (9, 7), (1, 20), (5, 20), (3, 1)]
"""Clients, and how many images they have: 1, 3, 2, 5, 5 and 1 steps of batches of four."""


def jobs_of(counts, round_=0):
    return [Job(client, round_, np.arange(count), 0.1, {}) for client, count in counts]


@pytest.mark.parametrize("build", [network, _Foreign])
@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize("count", [1, 3, None])
def test_lanes_of_a_gpu_train_what_a_cpu_does(gpu, task, build, capture, count):
    """Rehearsals leave no trace, and chance inside the network is each client's own."""
    ours = task(build)
    server = a_server(ours)
    expected = Lanes(Engine(), ours.numerics).train(ours, jobs_of(JOBS), server)
    found = gpu_lanes(lanes=count, capture=capture).train(ours, jobs_of(JOBS), server)
    assert [outcome.update.client for outcome in found] == [client for client, _ in JOBS]
    for one, other in zip(found, expected, strict=True):
        assert one.update.parameters.equal(other.update.parameters)
        assert one.update.buffers.equal(other.update.buffers)
        assert all(one.totals[name].equal(other.totals[name]) for name in other.totals)
    assert len(gpu.places) == (count or 4)
    assert sum(gpu.steps.values()) == (17 if capture else 0)


@pytest.mark.parametrize(
    ("need", "engine", "count"),
    [(10, {}, 4), (27, {}, 3), (30, {}, 2), (39, {}, 2), (40, {}, 1), (90, {}, 1), (90, {"lanes": 3}, 3)],
)
def test_lanes_are_opened_while_they_fit(gpu, task, need, engine, count):
    """One more where half as much again as a lane takes is free of 100: with 39, 61 > 58.5 is left once."""
    gpu.need = need
    ours = task()
    gpu_lanes(**engine).train(ours, jobs_of(JOBS), a_server(ours))
    assert len(gpu.places) == count


def test_a_lane_is_not_opened_for_nothing(gpu, task):
    ours = task()
    found = gpu_lanes()
    for _ in range(3):
        found.train(ours, jobs_of([(0, 20)]), a_server(ours))
    assert len(gpu.places) == 1


def test_no_more_than_a_few_steps_are_ahead_of_the_gpu(gpu, task):
    """Else memory for what is underway would grow, and a short client would wait behind a long one."""
    ours = task()
    found = gpu_lanes(lanes=2)
    tickets = found.submit(ours, jobs_of([(0, 20), (1, 20), (2, 20)]), a_server(ours))
    gpu.through = False
    for _ in range(30):
        found.pump()
    assert gpu.steps == {0: 4, 1: 4} and not any(ticket.outcome for ticket in tickets)
    gpu.through = True
    while not all(ticket.done for ticket in tickets):
        found.pump()
    assert sum(gpu.steps.values()) == 15


def test_a_job_is_done_when_the_gpu_is(gpu, task):
    ours = task()
    found = gpu_lanes()
    (ticket,) = found.submit(ours, jobs_of([(0, 8)]), a_server(ours))
    gpu.through = False
    for _ in range(10):
        found.pump()
    assert gpu.steps == {0: 2} and ticket.outcome is not None and not ticket.done
    gpu.through = True
    assert ticket.done


def test_a_long_client_does_not_go_on_alone(gpu, task):
    """Of 20 steps one client has 10: it gets half of the GPU, so that the others end with it."""
    ours = task(training={"batch_size": 4, "epochs": 2})
    found = gpu_lanes(lanes=3)
    tickets = found.submit(ours, jobs_of([(0, 20), (1, 8), (2, 8), (3, 4)]), a_server(ours))
    moved = []
    while not all(ticket.done for ticket in tickets):
        before = sum(gpu.steps.values())
        found.pump()
        moved.append(sum(gpu.steps.values()) - before)
    assert sum(moved) == 20
    assert moved.count(1) <= 2  # while the second lane opens, and at the end
    assert gpu.steps[0] == 10


def test_equal_clients_go_abreast(gpu, task):
    ours = task()
    found = gpu_lanes(lanes=3)
    tickets = found.submit(ours, jobs_of([(client, 20) for client in range(3)]), a_server(ours))
    while not all(ticket.done for ticket in tickets):
        found.pump()
        steps = [gpu.steps[number] for number in range(3)]
        assert steps == sorted(steps, reverse=True) and steps[0] - steps[2] <= 2
    assert gpu.steps == {0: 5, 1: 5, 2: 5}


@pytest.fixture
def drawn(monkeypatch):
    """Rounds and clients whose chance was drawn, in order."""
    found, plan = [], Task.plan

    def noted(task, round_, client, samples):
        found.append((round_, client))
        return plan(task, round_, client, samples)

    monkeypatch.setattr(Task, "plan", noted)
    return found


def test_chance_is_drawn_ahead_and_used(gpu, task, drawn):
    ours = task()
    found, server = gpu_lanes(), a_server(ours)
    expected = Lanes(Engine(), ours.numerics).train(ours, jobs_of(JOBS[:3], 1), server)
    del drawn[:]
    for client, count in JOBS[:2]:
        found.prepare(ours, 1, client, np.arange(count))
    outcomes = found.train(ours, jobs_of(JOBS[:3], 1), server)
    assert sorted(drawn) == [(1, 2), (1, 4), (1, 9)]  # each once, announced or not
    for one, other in zip(outcomes, expected, strict=True):
        assert one.update.parameters.equal(other.update.parameters)


def test_what_was_drawn_for_a_task_that_is_over_is_forgotten(gpu, task, drawn):
    ours, other = task(), task()
    found, server = gpu_lanes(), a_server(ours)
    for own in (ours, other):
        found.open(own)
        found.prepare(own, 1, 4, np.arange(3))
    found.close(ours)
    found.train(ours, jobs_of(JOBS[:1], 1), server)
    found.train(other, jobs_of(JOBS[:1], 1), server)
    assert drawn == [(1, 4)] * 3  # twice for the first


# --- too little memory -----------------------------------------------------------------------------------


def run_out(gpu, monkeypatch, fits):
    """From now on no more than so many lanes fit the GPU's memory."""
    captured = gpu.captured

    def full(function, place):
        if place.number >= fits:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return captured(function, place)

    monkeypatch.setattr(recipe, "Captured", full)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)


@pytest.mark.parametrize("fits", [1, 2])
def test_a_lane_that_does_not_fit_is_done_without(gpu, task, monkeypatch, fits):
    ours = task()
    server = a_server(ours)
    expected = Lanes(Engine(), ours.numerics).train(ours, jobs_of(JOBS), server)
    run_out(gpu, monkeypatch, fits)
    found = gpu_lanes()
    outcomes = found.train(ours, jobs_of(JOBS), server)
    for one, other in zip(outcomes, expected, strict=True):
        assert one.update.client == other.update.client
        assert one.update.parameters.equal(other.update.parameters)
    found.train(ours, jobs_of(JOBS), server)
    assert len(gpu.places) == fits + 1  # tried once, and never again


@pytest.mark.parametrize(
    ("engine", "fits", "words"),
    [({}, 0, ["training.batch_size."]), ({"lanes": 3}, 1, ["training.batch_size", "engine.lanes"])],
)
def test_a_step_that_does_not_fit_is_one_sentence(gpu, task, monkeypatch, complains, engine, fits, words):
    run_out(gpu, monkeypatch, fits)
    ours = task()
    with complains("memory", *words):
        gpu_lanes(**engine).train(ours, jobs_of(JOBS), a_server(ours))


def test_a_step_that_does_not_fit_ends_its_own_run_alone(gpu, task, monkeypatch):
    """Two experiments share the lanes; the steps of one are too large."""
    large, small = task(partial(network, "group")), task()
    captured = gpu.captured

    def full(function, place):
        if function.__self__.task is large:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return captured(function, place)

    monkeypatch.setattr(recipe, "Captured", full)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    found = gpu_lanes()
    found.open(large)
    found.submit(large, jobs_of([(0, 20)]), a_server(large))
    (outcome,) = found.train(small, jobs_of([(1, 4)]), a_server(small))
    assert outcome.update.client == 1


# --- rounds that overlap -------------------------------------------------------------------------------

EVERYTHING = {
    "objective": "vhl",
    "algorithm": "scaffold",
    "training": {"batch_size": 8, "keep_momentum": True, "decay_per": "participation"},
    "clients_per_round": 3,
    "rounds": 4,
    "evaluate_every": 2,
    "features_at": (1,),
}


def comparable(record):
    return record.model_copy(update={"seconds": 0.0})


def assert_same_state(one, other):
    a, b = one.state, other.state
    assert a.round == b.round and a.participations == b.participations and list(a.clients) == list(b.clients)
    assert a.server.parameters.equal(b.server.parameters) and a.server.buffers.equal(b.server.buffers)
    assert all(a.server.state[name].equal(b.server.state[name]) for name in b.server.state)
    assert all(a.clients[k][name].equal(b.clients[k][name]) for k in b.clients for name in b.clients[k])


@pytest.fixture
def overlapped(gpu, digit_simulation):
    """A simulation whose clients are trained in lanes of a GPU; ``submitted`` lists the rounds handed in."""

    def make(**settings):
        simulation = digit_simulation(**{**EVERYTHING, **settings})
        simulation.lanes, simulation.submitted = gpu_lanes(), []
        submit = simulation.lanes.submit

        def noted(task, jobs, server):
            simulation.submitted.append(jobs[0].round)
            return submit(task, jobs, server)

        simulation.lanes.submit = noted
        return simulation

    return make


def test_rounds_that_overlap_are_rounds_one_after_the_other(overlapped, digit_simulation, drawn):
    simulation, expected = overlapped(), digit_simulation(**EVERYTHING)
    for record, other in zip(simulation, expected, strict=True):
        assert comparable(record) == comparable(other)
        # The next round is underway when this one is reported; what is told is this one's all the same.
        assert simulation.submitted == list(range(min(record.round + 1, 4)))
        assert_same_state(simulation, expected)
        assert (simulation.evaluation is None) == (record.accuracy is None)
        if simulation.evaluation is not None:
            assert simulation.evaluation.accuracy == record.accuracy
            assert simulation.evaluation.confusion.equal(expected.evaluation.confusion)
        assert (simulation.snapshot is None) == (record.round != 1)
    assert len(drawn) == 2 * 4 * 3  # of both, each client's chance once: what is drawn ahead is used


def test_closed_while_the_next_round_is_underway(overlapped, digit_simulation):
    """What was reported counts; the rest is done again by whoever goes on."""
    simulation, expected = overlapped(), digit_simulation(**EVERYTHING)
    for _ in range(2):
        simulation.run_round()
        expected.run_round()
    for _ in range(3):
        simulation.lanes.pump()
    simulation.close()
    assert_same_state(simulation, expected)
    records = [comparable(record) for record in simulation]
    assert records == [comparable(record) for record in expected]
    assert_same_state(simulation, expected)


def test_a_round_is_reported_when_its_evaluation_is_there(overlapped, monkeypatch):
    """Until then the lanes go on with the next one."""
    arrived = []
    monkeypatch.setattr(Fetch, "ready", property(lambda fetch: bool(arrived)))
    simulation = overlapped(rounds=2, evaluate_every=1)
    for _ in range(100):
        assert simulation.poll() is None
        simulation.lanes.pump()
    assert simulation.submitted == [0, 1]
    arrived.append(True)
    assert [simulation.poll().round for _ in range(2)] == [1, 2]  # the second is trained by now


def test_what_was_found_in_a_round_stays_as_it_is(digit_simulation):
    simulation = digit_simulation(features_at=(1,), training={"batch_size": 8, "lr": 0.3})
    simulation.run_round()
    tables = [simulation.evaluation.confusion, simulation.snapshot["confusion"]]
    before = [table.clone() for table in tables]
    simulation.run_round()
    assert not simulation.evaluation.confusion.equal(before[0])
    assert all(table.equal(old) for table, old in zip(tables, before, strict=True))


def test_a_new_task_while_a_job_of_a_closed_one_is_underway(overlapped, digit_simulation):
    """Room is made by what no one uses any more, and a lane was still at it."""
    left, other = overlapped(), overlapped(objective="plain")
    other.lanes = left.lanes
    left.poll()
    left.lanes.pump()  # one lane is at the first job
    left.close()
    expected = digit_simulation(**EVERYTHING | {"objective": "plain"})
    assert [comparable(record) for record in other] == [comparable(record) for record in expected]
    assert_same_state(other, expected)
    expected = digit_simulation(**EVERYTHING)
    assert [comparable(record) for record in left] == [comparable(record) for record in expected]
    assert_same_state(left, expected)
