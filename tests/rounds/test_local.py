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
from vhl.data.images import ImageSet
from vhl.errors import VHLError
from vhl.experiment import Engine, Seeds
from vhl.models.base import Model
from vhl.models.cnn import CNN
from vhl.models.vectors import FlatModel
from vhl.objectives.plain import Plain
from vhl.rounds.problem import Problem
from vhl.rounds.simulation import Simulation
from vhl.rounds.workshop import Shelf, Workshop
from vhl.training.lanes import Lanes
from vhl.training.precision import Precision
from vhl.training.stream import Stream
from vhl.training.task import Job
from vhl.training.trainer import Trainer

CPU = torch.device("cpu")


@pytest.fixture
def pair(digit_simulation):
    """Two simulations in one workshop that differ in some settings."""

    def make(first=None, second=None, **both):
        workshop = Workshop()
        return [digit_simulation(workshop=workshop, **{**both, **(own or {})}) for own in (first, second)]

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


@pytest.mark.parametrize("settings", SAME)
def test_what_does_not_touch_the_data_shares_them(pair, settings):
    one, other = pair({}, settings, objective="vhl")
    assert one.problem.natural is other.problem.natural and one.lanes is other.lanes
    assert one.task.natural is other.task.natural
    assert one.problem.virtual is other.problem.virtual and one.task.virtual is other.task.virtual


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
    one, other = pair({}, settings, objective="vhl")
    assert (one.problem.natural is other.problem.natural) == natural
    assert (one.task.natural is other.task.natural) == natural
    assert (one.problem.virtual is other.problem.virtual) == virtual
    assert (one.task.virtual is other.task.virtual) == virtual


@pytest.mark.parametrize(
    "option", [{"crop": 2}, {"flip": True}, {"validation": 0.25}, {"mean": (0.5,), "std": (0.5,)}]
)
def test_other_options_of_the_data_are_other_data(pair, small_digits, option):
    one, other = pair({"data": small_digits()}, {"data": small_digits(**option)})
    assert one.problem.natural is not other.problem.natural


def test_the_virtual_set_of_another_folder_or_shape(digit_simulation, small_digits, tmp_path):
    workshop = Workshop()
    one = digit_simulation(objective="vhl", workshop=workshop)
    elsewhere = Problem(one.experiment, tmp_path, workshop=workshop)
    assert elsewhere.natural is not one.problem.natural and elsewhere.virtual is not one.problem.virtual
    larger = digit_simulation(objective="vhl", data=small_digits(size=12), workshop=workshop)
    assert larger.problem.virtual is not one.problem.virtual
    assert larger.problem.virtual.train.shape == (12, 12, 1)


def test_tiles_are_not_images_of_their_size(pair, small_digits):
    """8×8 both, of one seed; but the one makes mosaics of them."""
    tiles = {"data": small_digits(size=16), "objective": "vhl-light"}
    one, other = pair(tiles, {"data": small_digits(), "objective": "vhl"})
    assert np.array_equal(one.problem.virtual.images.images, other.problem.virtual.images.images)
    assert (one.task.virtual.tiles, type(other.task.virtual)) == (2, Stream)


def test_mosaics_of_one_class_are_not_those_of_any(pair):
    same = {"name": "vhl-light", "mosaic_classes": "same"}
    one, other = pair({"objective": "vhl-light"}, {"objective": same})
    assert one.problem.virtual is not other.problem.virtual and one.task.virtual is not other.task.virtual


def test_the_virtual_set_has_as_many_classes_as_the_natural_one(digit_simulation, array_source):
    """Where nothing else is said of it: so its own settings do not tell."""
    workshop, images = Workshop(), np.zeros((40, 8, 8, 1), np.uint8)
    problems = [
        digit_simulation(
            objective="vhl",
            data=array_source(
                ImageSet(images, np.arange(40) % classes), classes, mean=(0.5,), std=(1 / classes,)
            ),
            partition="iid:4",
            workshop=workshop,
        ).problem
        for classes in (2, 4)
    ]
    assert [len(problem.virtual.images) for problem in problems] == [20, 40]


@pytest.mark.parametrize(
    "engine", [{"precision": "fp64"}, {"precision": "bf16"}, {"lanes": 2}, {"deterministic": True}]
)
def test_another_engine_has_other_lanes(pair, engine):
    one, other = pair({"engine": {}}, {"engine": engine})
    assert one.lanes is not other.lanes


def test_another_device_has_other_lanes():
    workshop, engine = Workshop(), Engine(precision="fp32")
    cpu, gpu = (Precision.choose(engine, torch.device(kind)) for kind in ("cpu", "cuda"))
    lanes = [workshop.lanes(Engine(precision="fp32"), numerics, print) for numerics in (cpu, gpu, cpu)]
    assert lanes[0] is lanes[2] and lanes[0] is not lanes[1]


def test_without_a_workshop_nothing_is_shared(digit_simulation):
    one, other = digit_simulation(), digit_simulation()
    assert one.lanes is not other.lanes and one.problem.natural is not other.problem.natural


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
    problem, task = simulation.problem, simulation.task
    return [weakref.ref(thing) for thing in (problem.natural, problem.virtual, task.natural.images)]


def alive(held):
    gc.collect()
    return [reference() is not None for reference in held]


def test_what_nobody_uses_is_let_go(pair):
    one, other = pair({}, {"algorithm": "fedprox"}, objective="vhl")
    held, workshop = references(one), one.problem.workshop
    del one
    assert all(alive(held))  # the other one's too
    del other
    assert not any(alive(held)) and workshop is not None


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
    assert not any(alive(second))  # and with the workshop all of it


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


def test_one_of_two_seeds_that_ends_leaves_the_other_its_place(digit_simulation, trainers):
    workshop = Workshop()
    settings = [{}, {"seeds": {"batches": 1}}, {"algorithm": "fedprox"}]
    stays, ends, new = (digit_simulation(workshop=workshop, **own) for own in settings)
    stays.run_round()
    ends.run_round()
    ends.close()
    new.run_round()
    stays.run_round()
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


def comparable(record):
    return record.model_copy(update={"seconds": 0.0})


def state_of(simulation):
    """Every vector by name, and who took part how often."""
    state, server = simulation.state, simulation.state.server
    found = {"parameters": server.parameters, "buffers": server.buffers, **server.state}
    found |= {f"{c}.{name}": v for c, own in state.clients.items() for name, v in own.items()}
    return state.round, state.participations, found


def assert_same(one, other):
    (*counts, vectors), (*others, expected) = state_of(one), state_of(other)
    assert counts == others and set(vectors) == set(expected)
    assert all(vectors[name].equal(expected[name]) for name in expected)


@pytest.fixture
def alone(digit_simulation):
    """The simulation of these settings in a workshop of its own, run, with its records."""

    def make(**settings):
        simulation = digit_simulation(**settings)
        return simulation, [comparable(record) for record in simulation]

    return make


def advance(simulation, records):
    """One look, and where nothing is there yet some work; whether the simulation has more rounds."""
    if len(records) < simulation.experiment.rounds:
        record = simulation.poll()
        if record is None:
            simulation.lanes.pump()
        else:
            records.append(comparable(record))
    return len(records) < simulation.experiment.rounds


@pytest.mark.parametrize("lanes", [1, 2])
def test_side_by_side_is_one_after_the_other(digit_simulation, alone, lanes):
    workshop = Workshop()
    engines = [{"engine": {"lanes": lanes, **own.get("engine", {})}} for own in VARIANTS]
    running = [
        digit_simulation(workshop=workshop, **{**own, **engine})
        for own, engine in zip(VARIANTS, engines, strict=True)
    ]
    assert len({id(simulation.lanes) for simulation in running}) == 2  # the last has another precision
    records = [[] for _ in running]
    while any([advance(*own) for own in zip(running, records, strict=True)]):  # noqa: C419 each has its turn
        pass
    for simulation, found, own, engine in zip(running, records, VARIANTS, engines, strict=True):
        expected, expected_records = alone(**{**own, **engine})
        assert found == expected_records
        assert_same(simulation, expected)


def test_rounds_of_two_are_mixed(pair):
    """Else the test above would prove nothing: clients of both wait in the same lanes, the longest first."""
    one, other = pair({}, {"seeds": {"batches": 1}}, partition={"name": "lda", "alpha": 0.3, "clients": 4})
    order, sizes = [], [len(part) for part in one.problem.parts]
    finish = FedAvg.finish

    def noted(self, weights, client, work):
        order.append(work.samples)
        return finish(self, weights, client, work)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FedAvg, "finish", noted)
        assert one.poll() is None and other.poll() is None
        for _ in range(2 * len(sizes)):
            one.lanes.pump()
        one.lanes.pump()  # nothing is left to do
    steps = [-(-size // 8) for size in order]
    assert steps == sorted(steps, reverse=True) and sorted(order) == sorted(2 * sizes)
    assert one.poll().round == other.poll().round == 1


def test_one_that_diverges_leaves_the_others_alone(pair, alone):
    bad, good = pair({"training": {"batch_size": 8, "lr": 1e30}}, {"rounds": 3})
    records, raised, running = [], None, True
    while running or raised is None:
        if raised is None:
            try:
                advance(bad, [])
            except VHLError as error:
                raised = error
        running = advance(good, records)
    assert "every client's model became infinite" in str(raised) and bad.state.round == 0
    expected, expected_records = alone(rounds=3)
    assert records == expected_records
    assert_same(good, expected)


@pytest.mark.parametrize("pumps", [0, 1, 3])
def test_one_that_is_closed_half_way_leaves_the_others_alone(pair, alone, monkeypatch, pumps):
    """Its jobs that wait are dropped; asked again, it begins its round anew."""
    seeds = {"seeds": {"batches": 1}}
    left, stays = pair(seeds, {})
    trained, finish = [], Trainer.finish

    def noted(trainer, job, task):
        trained.append(task.seed)
        return finish(trainer, job, task)

    monkeypatch.setattr(Trainer, "finish", noted)
    assert left.poll() is None and stays.poll() is None
    for _ in range(pumps):
        left.lanes.pump()
    left.close()
    before, records = trained.count(1), []
    while advance(stays, records):
        pass
    assert trained.count(1) == before <= pumps and trained.count(0) == 2 * 4
    expected, expected_records = alone()
    assert records == expected_records
    assert_same(stays, expected)
    left.close()  # a second time changes nothing
    assert left.state.round == 0
    del trained[:]
    found = [comparable(record) for record in left]
    assert trained == [1] * 2 * 4
    expected, expected_records = alone(**seeds)
    assert found == expected_records
    assert_same(left, expected)


def test_an_error_is_its_own_and_the_round_can_be_tried_again(pair, alone, monkeypatch):
    one, other = pair({}, {"seeds": {"batches": 1}})
    land = Simulation._land

    def stopped(simulation, flight):
        if simulation is one and simulation.state.round == 1:
            raise KeyboardInterrupt
        return land(simulation, flight)

    first = [comparable(one.run_round())]
    with monkeypatch.context() as patch:
        patch.setattr(Simulation, "_land", stopped)
        with pytest.raises(KeyboardInterrupt):
            one.run_round()
        records = [comparable(record) for record in other]
    assert records == alone(seeds={"batches": 1})[1]
    expected, expected_records = alone()
    assert first + [comparable(record) for record in one] == expected_records
    assert_same(one, expected)


class _Refuses(Plain):
    """An objective that has something to say in the middle of training."""

    def loss(self, batch):
        raise VHLError("These data cannot be learned.")


def test_an_error_in_a_clients_training_goes_to_its_own_simulation(pair):
    bad, good = pair({"objective": _Refuses()}, {})
    assert bad.poll() is None and good.poll() is None
    refused, records = None, []
    for _ in range(20):
        advance(good, records)
        if refused is None:
            try:
                advance(bad, [])
            except VHLError as error:
                refused = error
    assert "cannot be learned" in str(refused) and len(records) == 2


# --- recipes -------------------------------------------------------------------------------------------


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
def test_tasks_that_take_the_same_steps_share_a_recipe(pair, settings, same):
    one, other = pair({}, settings, objective="vhl")
    assert (one.task.signature == other.task.signature) == same


def test_more_natural_classes_or_outputs_are_another_network(digit_simulation):
    task = digit_simulation(objective="vhl").problem
    assert task.network(4) != task.network(8)


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


def test_what_a_network_draws_beside_its_weights_is_its_own(pair, alone):
    """Whole numbers are no part of the vectors that are loaded, and a seed draws its own."""
    seeds = {"seeds": {"model": 1}}
    one, other = pair({}, seeds, model=_ShuffledModel())
    one.run_round()
    list(other)
    assert_same(other, alone(model=_ShuffledModel(), **seeds)[0])


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
    job = Job(0, 0, np.arange(count), 0.1, {})
    lanes.train(builds.task, [job], Server(model.parameters, model.buffers))
    return builds.count


def test_a_recipe_without_users_is_dropped_when_a_new_one_comes(builds):
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


def test_equal_tasks_count_as_users_of_one_recipe(builds):
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


def test_close_drops_the_waiting_jobs_of_that_task_alone(builds):
    """Even of a twin that takes the same steps."""
    lanes = Lanes(Engine(), builds("any").task.precision)
    one, twin = builds("same"), builds("same")
    model = FlatModel(one.build(), CPU)
    server = Server(model.parameters, model.buffers)
    jobs = [Job(client, 0, np.arange(8), 0.1, {}) for client in range(2)]
    tickets = {}
    for own in (one, twin):
        lanes.open(own.task)
        tickets[own] = lanes.submit(own.task, jobs, server)
    lanes.pump()  # all are equally long: the first of the first
    lanes.close(one.task)
    for _ in range(4):
        lanes.pump()
    assert [ticket.done for ticket in tickets[one]] == [True, False]
    assert [ticket.done for ticket in tickets[twin]] == [True, True]
