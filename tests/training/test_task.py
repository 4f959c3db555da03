from __future__ import annotations

import numpy as np
import pytest
import torch

from vhl.algorithms.base import Work
from vhl.algorithms.fedprox import FedProx
from vhl.objectives.naive import Naive
from vhl.objectives.virtual_batch import VirtualBatch
from vhl.training.precision import Precision
from vhl.training.task import Job


@pytest.fixture
def virtual(make_stream):
    return make_stream(np.zeros((9, 8, 8, 2), np.uint8), np.arange(9) % 3)


def test_steps_and_how_many_samples_each_uses(small_task):
    """Ten samples in batches of 4, twice; a client with fewer than a batch has one short step an epoch."""
    task = small_task(training={"batch_size": 4, "epochs": 2}, sizes=(10, 3))
    assert task.rows(10) == [4, 4, 2] * 2 and task.steps(10) == 6
    assert task.rows(8) == [4, 4] * 2 and task.rows(3) == [3] * 2
    assert task.longest == 6


@pytest.mark.parametrize(
    ("sizes", "short", "whole"),
    [((20, 8), False, True), ((20, 7), True, True), ((3, 1), True, False), ((4,), False, True)],
)
def test_which_batches_there_are(small_task, sizes, short, whole):
    task = small_task(sizes=sizes)
    assert (task.has_short_batches, task.has_whole_batches) == (short, whole)


def test_virtual_images_are_the_objective_s(small_task, virtual):
    assert small_task().virtual_batch is None
    assert small_task(virtual=virtual).virtual_batch is None  # as of VFTL, which has them beforehand
    assert small_task(virtual=virtual, objective=Naive()).virtual_batch == VirtualBatch(4)
    assert small_task(virtual=virtual, objective=Naive(virtual_batch=7)).virtual_batch.rows == 7


def test_a_job_s_work_and_its_network_s_seed(small_task):
    task = small_task(training={"batch_size": 4, "epochs": 3, "momentum": 0.5}, seed=3)
    assert task.work(Job(5, 2, torch.arange(9), 0.05, {})) == Work(9, 9, 0.05, 0.5)
    places = [(2, 5), (3, 5), (2, 6)]
    seeds = {task.network_seed(Job(c, r, torch.arange(9), 0.05, {})) for r, c in places}
    assert len(seeds | {small_task(seed=4).network_seed(Job(5, 2, torch.arange(9), 0.05, {}))}) == 4


SAME = [{"seed": 1}, {"training": {"batch_size": 4, "lr": 0.5, "lr_decay": 0.5, "lr_drops": [3]}}]
OTHER = [
    {"training": {"batch_size": 2}},
    {"training": {"batch_size": 4, "momentum": 0.1}},
    {"objective": Naive()},
    {"objective": Naive(batch_norm_share=0.5)},
    {"algorithm": FedProx()},
    {"algorithm": FedProx(mu=0.3)},
    {"precision": Precision(torch.device("cpu"), "fp64")},
    {"sizes": (24, 7)},
    {"sizes": (20, 8)},
    {"sizes": (3,)},
    {"network": "another"},
]


def test_tasks_that_take_the_same_steps_have_equal_signatures(small_task, virtual, make_stream):
    plain = small_task(network="same").signature
    assert all(small_task(network="same", **same).signature == plain for same in SAME)
    others = [{"network": "same", **other} for other in OTHER]
    others += [{"network": "same", "virtual": virtual}]
    others += [
        {"network": "same", "natural": make_stream(np.zeros((20, 8, 8, 2), np.uint8), np.arange(20) % 3)}
    ]
    found = {plain, *(small_task(**other).signature for other in others)}
    assert len(found) == 1 + len(others)
