"""Simulations that share lanes and data give what each gives alone."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from vhl.algorithms.base import Server
from vhl.algorithms.fedavg import FedAvg
from vhl.config.sections import Engine, Seeds
from vhl.data.images import ImageSet
from vhl.errors import VHLError
from vhl.models.base import Model
from vhl.models.cnn import CNN
from vhl.models.vectors import FlatModel
from vhl.objectives.plain import Plain
from vhl.rounds.local import Shared, Shelf, local
from vhl.training.lanes import Lanes
from vhl.training.precision import Precision
from vhl.training.streams import Stream
from vhl.training.task import Job
from vhl.training.trainer import Trainer

CPU = torch.device("cpu")


@pytest.fixture
def pair(digit_simulation):
    """Two simulations with something shared that differ in some settings."""

    def make(first=None, second=None, **both):
        shared = Shared()
        return [digit_simulation(shared=shared, **{**both, **(own or {})}) for own in (first, second)]

    return make


# --- what is shared ------------------------------------------------------------------------------------

SAME = [
    {},
    {"seeds": {"model": 1, "sampling": 2, "batches": 3}},
    {"training": {"batch_size": 8, "lr": 0.5}},
    {"training": {"batch_size": 4, "epochs": 2}},
    {"algorithm": "scaffold"},
    {"objective": "naive"},
    {"model": "resnet8"},
    {"rounds": 7, "clients_per_round": 1, "name": "other"},
]


def parts(simulation):
    """What may be shared: natural data as they lie here and what is known of them, virtual data, lanes."""
    task, setup = simulation.clients.task, simulation.setup
    return [task.natural, setup.data, setup.virtual, task.virtual, simulation.federation.lanes]


def are_shared(one, other):
    return [a is b for a, b in zip(parts(one), parts(other), strict=True)]


@pytest.mark.parametrize("settings", SAME)
def test_what_does_not_touch_the_data_shares_them(pair, settings):
    assert all(are_shared(*pair({}, settings, objective="vhl")))


@pytest.mark.parametrize(
    ("settings", "natural", "virtual"),
    [
        ({"partition": {"name": "lda", "alpha": 0.6, "clients": 4}}, False, True),
        ({"partition": {"name": "lda", "alpha": 0.5, "clients": 3}}, False, True),
        ({"seeds": {"data": 1}}, False, False),
        ({"virtual": {"name": "noise", "per_class": 11}}, True, False),
        ({"virtual": {"name": "noise", "per_class": 10, "flip": False}}, True, False),
        ({"virtual": {"name": "noise", "per_class": 10, "classes": 5}}, True, False),
        ({"engine": {"precision": "fp64"}}, False, False),
        ({"engine": {"precision": "bf16"}}, True, True),  # images lie there in 8 bits and are made in 32
    ],
)
def test_other_data_are_not_shared(pair, settings, natural, virtual):
    found = are_shared(*pair({}, settings, objective="vhl"))
    assert found == [natural, natural, virtual, virtual, "engine" not in settings]


@pytest.mark.parametrize(
    "option", [{"crop": 2}, {"flip": True}, {"validation": 0.25}, {"mean": (0.5,), "std": (0.5,)}]
)
def test_other_options_of_the_data_are_other_data(pair, small_digits, option):
    assert not are_shared(*pair({"data": small_digits()}, {"data": small_digits(**option)}))[0]


def test_the_virtual_set_of_another_folder_or_shape(digit_simulation, small_digits, tmp_path):
    shared = Shared()
    one = digit_simulation(objective="vhl", shared=shared)
    elsewhere = local(one.experiment, tmp_path, shared=shared)
    assert elsewhere.setup.data is not one.setup.data and elsewhere.setup.virtual is not one.setup.virtual
    larger = digit_simulation(objective="vhl", data=small_digits(size=12), shared=shared)
    assert larger.setup.virtual is not one.setup.virtual
    assert larger.setup.virtual.train.shape == (12, 12, 1)


def test_tiles_are_not_images_of_their_size(pair, small_digits):
    """8×8 both, of one seed; but the one makes mosaics of them."""
    tiles = {"data": small_digits(size=16), "objective": "vhl-light"}
    one, other = (made.setup.virtual for made in pair(tiles, {"data": small_digits(), "objective": "vhl"}))
    assert np.array_equal(one.images.images, other.images.images)
    assert (one.train.tiles, type(other.train)) == (2, Stream)


def test_mosaics_of_one_class_are_not_those_of_any(pair):
    same = {"name": "vhl-light", "mosaic_classes": "same"}
    assert not any(are_shared(*pair({"objective": "vhl-light"}, {"objective": same}))[2:4])


def test_the_virtual_set_has_as_many_classes_as_the_natural_one(digit_simulation, array_source):
    """Where nothing else is said of it: so its own settings do not tell."""
    shared, images, found = Shared(), np.zeros((40, 8, 8, 1), np.uint8), []
    for classes in (2, 4):
        own = ImageSet(images, np.arange(40) % classes)
        data = array_source(own, classes, mean=(0.5,), std=(1 / classes,))
        found.append(digit_simulation(objective="vhl", data=data, partition="iid:4", shared=shared))
    assert [len(simulation.setup.virtual.images) for simulation in found] == [20, 40]


@pytest.mark.parametrize(
    "engine", [{"precision": "fp64"}, {"precision": "bf16"}, {"lanes": 2}, {"deterministic": True}]
)
def test_another_engine_has_other_lanes(pair, engine):
    assert not are_shared(*pair({"engine": {}}, {"engine": engine}))[-1]


def test_another_device_has_other_lanes():
    shared, engine = Shared(), Engine(precision="fp32")
    cpu, gpu = (Precision.choose(engine, torch.device(kind)) for kind in ("cpu", "cuda"))
    lanes = [shared.lanes(Engine(precision="fp32"), precision, print) for precision in (cpu, gpu, cpu)]
    assert lanes[0] is lanes[2] and lanes[0] is not lanes[1]


def test_where_nothing_is_shared(digit_simulation):
    assert not any(are_shared(digit_simulation(objective="vhl"), digit_simulation(objective="vhl")))


def test_a_shelf_tells_words_apart():
    class Thing:
        pass

    shelf, made = Shelf(), []

    def get(*words):
        made.append(shelf.get(Thing, *words))
        return made[-1]

    words = [("a", "b"), ("ab",), ("a", "b", ""), (1,), (2,), (Seeds(),), (Seeds(data=1),), ('a", "b',)]
    things = {id(get(*own)) for own in words}
    assert len(things) == len(words)
    assert {id(get(*own)) for own in words} == things


def test_what_cannot_be_made_is_tried_again():
    class Thing:
        pass

    def fail():
        raise VHLError("No.")

    shelf = Shelf()
    with pytest.raises(VHLError):
        shelf.get(fail, "word")
    assert isinstance(shelf.get(Thing, "word"), Thing)


def references(simulation):
    """To what lies on the device for a simulation."""
    images, _, virtual, *_ = parts(simulation)
    return [weakref.ref(thing) for thing in (images, images.images, virtual)]


def alive(held):
    gc.collect()
    return [reference() is not None for reference in held]


def test_what_nobody_uses_is_let_go(digit_simulation):
    shared = Shared()
    one, other = (digit_simulation(objective="vhl", shared=shared, algorithm=a) for a in ("fedavg", "moon"))
    held = references(one)
    del one
    assert all(alive(held))  # the other one's too
    del other
    assert not any(alive(held))


def test_what_was_trained_on_is_let_go_when_something_new_comes(pair):
    """Until then it stays: the next experiment may take the same steps."""
    one, other = pair({}, {"seeds": {"data": 1}}, objective="vhl")
    one.run_round()
    one.close()
    first, second = references(one), references(other)
    del one
    other.run_round()
    assert not any(alive(first))
    other.close()
    del other
    assert not any(alive(second))  # and with what was shared all of it


@pytest.fixture
def trainers(monkeypatch):
    """Every trainer that is made; each has a network of its own, and on a GPU its captured steps."""
    made, init = [], Trainer.__init__

    def noted(self, *arguments, **options):
        made.append(self)
        init(self, *arguments, **options)

    monkeypatch.setattr(Trainer, "__init__", noted)
    return made


def test_the_next_experiment_finds_what_the_last_one_made(pair, trainers):
    """Seeds one after the other."""
    one, other = pair({}, {"seeds": {"model": 1, "batches": 1}})
    list(one)
    one.close()
    list(other)
    assert len(trainers) == 1


def test_experiments_side_by_side_keep_what_they_need(pair, trainers):
    """Neither throws out what the other uses."""
    one, other = pair({}, {"algorithm": "fedprox"}, rounds=3)
    for _ in range(3):
        one.run_round()
        other.run_round()
    assert len(trainers) == 2


# --- side by side --------------------------------------------------------------------------------------

VARIANTS = [
    {"objective": "vhl", "algorithm": "scaffold", "training": {"batch_size": 8, "keep_momentum": True}},
    {"objective": "plain", "rounds": 4, "clients_per_round": 2},
    {"objective": "plain", "seeds": {"model": 1, "sampling": 1, "batches": 1}},
    {"objective": "vftl", "training": {"batch_size": 5, "epochs": 2, "lr_decay": 0.5}},
    {
        "objective": "vhl",
        "algorithm": "scaffold",
        "training": {"batch_size": 8, "keep_momentum": True, "lr": 0.1},
    },
    {"objective": "plain", "engine": {"precision": "bf16"}},
]


@pytest.fixture
def run_all(comparable):
    """Simulations that take turns, each one look at a time, to their end; records, or what went wrong."""

    def run(*simulations):
        found = {simulation: [] for simulation in simulations}
        running = list(simulations)
        while running:
            for simulation in list(running):
                try:
                    record = simulation.poll()
                except VHLError as error:
                    found[simulation] = error
                    running.remove(simulation)
                    continue
                found[simulation] += [] if record is None else comparable([record])
                if simulation.state.round == simulation.experiment.rounds and record is not None:
                    running.remove(simulation)
        return list(found.values())

    return run


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_side_by_side_is_one_after_the_other(digit_simulation, comparable, assert_same_state, run_all, lanes):
    shared = Shared()
    settings = [{**own, "engine": {"lanes": lanes, **own.get("engine", {})}} for own in VARIANTS]
    running = [digit_simulation(shared=shared, **own) for own in settings]
    assert len({id(simulation.federation.lanes) for simulation in running}) == 2  # of another precision
    for simulation, records, own in zip(running, run_all(*running), settings, strict=True):
        alone = digit_simulation(**own)
        assert records == comparable(alone)
        assert_same_state(simulation, alone)


class _Noting(FedAvg):
    """FedAvg that notes whose training is over, told by its samples or its rate."""

    def __init__(self, notes):
        super().__init__()
        object.__setattr__(self, "notes", notes)

    def finish(self, weights, client, work):
        self.notes.append(work)
        return super().finish(weights, client, work)


def test_rounds_of_two_are_mixed(pair, run_all):
    """Else the test above would prove nothing: clients of both wait in the same lanes, the longest first."""
    done, settings = [], {"partition": {"name": "lda", "alpha": 0.3, "clients": 4}, "rounds": 1}
    one, other = pair({}, {"seeds": {"batches": 1}}, algorithm=_Noting(done), **settings)
    run_all(one, other)
    assert sorted(work.samples for work in done) == sorted(2 * one.setup.sizes)
    steps = [work.steps for work in done]
    assert steps == sorted(steps, reverse=True) and len(set(steps)) > 1


class _Refuses(Plain):
    """An objective that has something to say in the middle of training."""

    def loss(self, batch):
        raise VHLError("These data cannot be learned.")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"training": {"batch_size": 8, "lr": 1e30}}, "every client's model became infinite"),
        ({"objective": _Refuses()}, "cannot be learned"),
    ],
)
def test_one_that_goes_wrong_leaves_the_others_alone(
    pair, digit_simulation, comparable, assert_same_state, run_all, settings, words
):
    bad, good = pair(settings, {"rounds": 3})
    error, records = run_all(bad, good)
    assert words in str(error) and bad.state.round == 0
    alone = digit_simulation(rounds=3)
    assert records == comparable(alone)
    assert_same_state(good, alone)


@pytest.mark.parametrize("looks", [1, 2, 4])
def test_one_that_is_closed_half_way_leaves_the_others_alone(
    pair, digit_simulation, comparable, assert_same_state, run_all, looks
):
    """Its jobs that wait are dropped; asked again, it begins its round anew."""
    done, fast = [], {"seeds": {"batches": 1}, "training": {"batch_size": 8, "lr": 0.02}}
    left, stays = pair(fast, {}, algorithm=_Noting(done))
    for _ in range(looks):
        assert left.poll() is None and stays.poll() is None
    left.close()
    before = [work.rate for work in done]
    (records,) = run_all(stays)
    rates = [work.rate for work in done]
    assert rates.count(0.02) == before.count(0.02) <= 2 * looks and len(rates) == rates.count(0.02) + 8
    alone = digit_simulation(algorithm=_Noting([]))
    assert records == comparable(alone)
    assert_same_state(stays, alone)
    left.close()  # a second time changes nothing
    assert left.state.round == 0
    alone = digit_simulation(algorithm=_Noting([]), **fast)
    assert comparable(left) == comparable(alone)
    assert_same_state(left, alone)


class _Stops(FedAvg):
    """FedAvg in which Ctrl-C comes at its second average."""

    def __init__(self):
        super().__init__()
        object.__setattr__(self, "calls", [])

    def aggregate(self, *arguments):
        self.calls.append(1)
        if len(self.calls) == 2:
            raise KeyboardInterrupt
        return super().aggregate(*arguments)


def test_a_round_that_was_stopped_can_be_tried_again(
    pair, digit_simulation, comparable, assert_same_state, assert_same_run
):
    one, other = pair({"algorithm": _Stops()}, {"seeds": {"batches": 1}})
    first = comparable([one.run_round()])
    with pytest.raises(KeyboardInterrupt):
        one.run_round()
    assert_same_run(other, digit_simulation(seeds={"batches": 1}))
    alone = digit_simulation()
    assert first + comparable(one) == comparable(alone)
    assert_same_state(one, alone)


# --- steps --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "same"),
    [
        ({}, True),
        ({"seeds": {"model": 1, "sampling": 1, "batches": 1}}, True),
        ({"training": {"batch_size": 8, "lr": 0.5, "lr_decay": 0.9, "decay_per": "participation"}}, True),
        ({"training": {"batch_size": 8, "lr_drops": [1]}}, True),
        ({"rounds": 9, "clients_per_round": 2, "evaluate_every": 2}, True),
        ({"training": {"batch_size": 4}}, False),
        ({"training": {"batch_size": 8, "epochs": 2}}, False),
        ({"training": {"batch_size": 8, "momentum": 0.5}}, False),
        ({"training": {"batch_size": 8, "weight_decay": 0.5}}, False),
        ({"training": {"batch_size": 8, "keep_momentum": True}}, False),
        ({"algorithm": "fedprox"}, False),
        ({"algorithm": {"name": "fedavg", "weighting": "uniform"}}, False),
        ({"objective": {"name": "vhl", "virtual_batch": 5}}, False),
        ({"model": {"name": "cnn", "width": 5}}, False),
        ({"model": {"name": "cnn", "width": 4, "norm": "group"}}, False),
        ({"partition": {"name": "lda", "alpha": 0.5, "clients": 3}}, False),
        ({"seeds": {"data": 1}}, False),
        ({"virtual": {"name": "noise", "per_class": 9}}, False),
        ({"engine": {"precision": "fp64"}}, False),
        ({"engine": {"precision": "bf16"}}, False),
    ],
)
def test_tasks_that_take_the_same_steps_are_made_once(pair, settings, same):
    one, other = pair({}, settings, objective="vhl")
    assert (one.clients.task.signature == other.clients.task.signature) == same


class _Shuffled(nn.Module):
    """Its pixels are in an order that is drawn with the weights."""

    def __init__(self, inputs, classes):
        super().__init__()
        self.register_buffer("order", torch.randperm(inputs))
        self.layer = nn.Linear(inputs, classes)

    def forward(self, images):
        pixels = images.flatten(1)[:, self.order]
        return {"last": pixels}, self.layer(pixels)


class _ShuffledModel(Model):
    """A network with chance that is no weight."""

    def build(self, classes, channels, size):
        return _Shuffled(channels * size[0] * size[1], classes)


def test_what_a_network_draws_beside_its_weights_is_its_own(pair, digit_simulation, assert_same_run):
    """Whole numbers are no part of the vectors that are loaded, and a seed draws its own."""
    seeds = {"seeds": {"model": 1}}
    one, other = pair({}, seeds, model=_ShuffledModel())
    one.run_round()
    assert_same_run(other, digit_simulation(model=_ShuffledModel(), **seeds))


@pytest.fixture
def builds(make_task, make_stream):
    """Makes tasks of an own signature each, and counts the networks that are built for them."""
    rng = np.random.default_rng(0)
    stream = make_stream(rng.integers(0, 256, (8, 8, 8, 1), np.uint8), np.arange(8) % 3)

    class Builds:
        def __init__(self, network):
            self.count = 0
            self.task = make_task(self.build, stream, training={"batch_size": 4})
            object.__setattr__(self.task, "network", network)

        def build(self):
            self.count += 1
            return CNN(width=2).build(3, 1, (8, 8))

    return Builds


def train(lanes, builds, count=8):
    model = FlatModel(CNN(width=2).build(3, 1, (8, 8)), CPU)
    job = Job(0, 0, torch.arange(count), 0.1, {})
    lanes.train(builds.task, [job], Server(model.parameters, model.buffers))
    return builds.count


def test_what_makes_steps_without_users_is_dropped_when_a_new_one_comes(builds):
    lanes = Lanes(Engine(), builds("any").task.precision)
    first, second, third = builds("first"), builds("second"), builds("third")
    assert train(lanes, first) == 1 and train(lanes, first) == 1  # kept as long as nothing else comes
    lanes.open(second.task)  # as a simulation does that goes on
    assert train(lanes, second) == 1
    assert train(lanes, third) == 1
    assert train(lanes, second) == 1  # still used
    assert train(lanes, first) == 2 and train(lanes, third) == 2  # were not
    lanes.close(second.task)
    assert train(lanes, second) == 1  # until something new
    assert train(lanes, first) == 3
    assert train(lanes, second) == 2


def test_what_is_dropped_lets_its_data_go(builds):
    lanes = Lanes(Engine(), builds("any").task.precision)
    old, new = builds("old"), builds("new")
    train(lanes, old)
    gone = weakref.ref(old.task)
    del old
    gc.collect()
    assert gone() is not None
    train(lanes, new)
    gc.collect()
    assert gone() is None


def test_equal_tasks_count_as_users_of_one(builds):
    lanes = Lanes(Engine(), builds("any").task.precision)
    one, twin, other = builds("same"), builds("same"), builds("other")
    lanes.open(one.task)
    lanes.open(twin.task)
    assert train(lanes, one) == 1 and train(lanes, twin) == 0  # the other's network
    lanes.close(twin.task)
    train(lanes, other)
    assert train(lanes, one) == 1
    lanes.close(one.task)
    train(lanes, builds("another"))
    assert train(lanes, one) == 2
