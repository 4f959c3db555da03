"""Lanes side by side on a GPU, with what stands in for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from vhl.config.sections import Engine
from vhl.training import recipe
from vhl.training.lanes import Lanes
from vhl.training.task import Job

JOBS = [(4, 3), (2, 12), (9, 7), (1, 20), (5, 20), (3, 1)]
"""Clients, and how many images they have: 1, 3, 2, 5, 5 and 1 steps of batches of four."""


def jobs_of(counts, round_=0):
    return [Job(client, round_, np.arange(count), 0.1, {}) for client, count in counts]


def on_a_cpu(task, jobs, server):
    return Lanes(Engine(), task.precision).train(task, jobs, server)


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert one.update.client == other.update.client
        assert one.update.parameters.equal(other.update.parameters)
        assert one.update.buffers.equal(other.update.buffers)
        assert all(one.totals[name].equal(other.totals[name]) for name in other.totals)


@pytest.mark.parametrize("network", ["batch", "foreign"])
@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize("count", [1, 3, None])
def test_lanes_of_a_gpu_train_what_a_cpu_does(gpu, small_task, server_of, network, capture, count):
    """Rehearsals leave no trace, and chance inside the network is each client's own."""
    task = small_task(network)
    server = server_of(task)
    found = gpu.lanes(lanes=count, capture=capture).train(task, jobs_of(JOBS), server)
    assert [outcome.update.client for outcome in found] == [client for client, _ in JOBS]
    assert_same(found, on_a_cpu(task, jobs_of(JOBS), server))
    assert len(gpu.places) == (count or 4)
    assert sum(gpu.steps.values()) == (17 if capture else 0)


@pytest.mark.parametrize(("compile_", "times"), [(True, 1), (None, 0)])
def test_a_task_is_compiled_once_where_that_is_asked_for(
    gpu, small_task, server_of, monkeypatch, compile_, times
):
    asked = []
    monkeypatch.setattr(recipe, "compiled_pieces", lambda pieces: asked.append(1) or replace(pieces))
    task = small_task()
    gpu.lanes(compile=compile_).train(task, jobs_of(JOBS), server_of(task))
    assert len(asked) == times


# --- how many lanes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("need", "engine", "count"),
    [(10, {}, 4), (27, {}, 3), (30, {}, 2), (39, {}, 2), (40, {}, 1), (90, {}, 1), (90, {"lanes": 3}, 3)],
)
def test_lanes_are_opened_while_they_fit(gpu, small_task, server_of, need, engine, count):
    """One more where half as much again as a lane takes is free of 100: with 39, 61 > 58.5 is left once."""
    gpu.need = need
    task = small_task()
    gpu.lanes(**engine).train(task, jobs_of(JOBS), server_of(task))
    assert len(gpu.places) == count


def test_a_lane_is_not_opened_for_nothing(gpu, small_task, server_of):
    task, found = small_task(), gpu.lanes()
    for _ in range(3):
        found.train(task, jobs_of([(0, 20)]), server_of(task))
    assert len(gpu.places) == 1


@pytest.mark.parametrize(
    ("steps", "moved"),
    [
        ([10, 4, 4, 2], [1] + [2] * 8 + [3]),  # the first has half of all steps, and gets half of the GPU
        ([10] + [2] * 10, [1, 2] + [3] * 8 + [2, 1]),  # a third; last is what was not done while lanes opened
        ([6, 6, 6], [1, 2, 2, 3, 2, 3, 2, 3]),  # equal ones wait for each other
        ([10, 2], [1, 2, 2] + [1] * 7),  # never one alone where there are two
    ],
)
def test_a_long_client_does_not_go_on_alone(gpu, small_task, server_of, steps, moved):
    """Steps of each pump: three lanes open one after the other, and come to an end together if they can."""
    task = small_task(training={"batch_size": 4, "epochs": 2})
    found = gpu.lanes(lanes=3)
    jobs = jobs_of([(client, 2 * count) for client, count in enumerate(steps)])
    tickets, done = found.submit(task, jobs, server_of(task)), [0]
    while not all(ticket.done for ticket in tickets):
        found.pump()
        done.append(sum(gpu.steps.values()))
    assert np.diff(done).tolist() == moved


# --- drawing ahead -------------------------------------------------------------------------------------


def test_chance_is_drawn_ahead_and_used(gpu, small_task, server_of, drawn):
    task, found = small_task(), gpu.lanes()
    server = server_of(task)
    expected = on_a_cpu(task, jobs_of(JOBS[:3], 1), server)
    del drawn[:]
    for client, count in JOBS[:2]:
        found.prepare(task, 1, client, np.arange(count))
    outcomes = found.train(task, jobs_of(JOBS[:3], 1), server)
    assert sorted(drawn) == [(1, 2), (1, 4), (1, 9)]  # each once, announced or not
    assert_same(outcomes, expected)


def test_what_was_drawn_for_a_task_that_is_over_is_forgotten(gpu, small_task, server_of, drawn):
    task, other = small_task(), small_task()
    found, server = gpu.lanes(), server_of(task)
    for own in (task, other):
        found.open(own)
        found.prepare(own, 1, 4, np.arange(3))
    found.close(task)
    found.train(task, jobs_of(JOBS[:1], 1), server)
    found.train(other, jobs_of(JOBS[:1], 1), server)
    assert drawn == [(1, 4)] * 3  # twice for the first


# --- too little memory ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fits", [1, 2])
def test_a_lane_that_does_not_fit_is_done_without(gpu, small_task, server_of, fits):
    gpu.fits = fits
    task, found = small_task(), gpu.lanes()
    server = server_of(task)
    expected = on_a_cpu(task, jobs_of(JOBS), server)
    for _ in range(2):
        assert_same(found.train(task, jobs_of(JOBS), server), expected)
    assert len(gpu.places) == fits + 1 and gpu.refused == 1  # tried once, and never again


@pytest.mark.parametrize(
    ("engine", "fits", "words"),
    [({}, 0, ["training.batch_size."]), ({"lanes": 3}, 1, ["training.batch_size", "engine.lanes"])],
)
def test_a_step_that_does_not_fit_is_one_sentence(gpu, small_task, server_of, complains, engine, fits, words):
    gpu.fits = fits
    task = small_task()
    with complains("memory", *words):
        gpu.lanes(**engine).train(task, jobs_of(JOBS), server_of(task))


def test_a_step_that_does_not_fit_ends_its_own_run_alone(gpu, small_task, server_of, monkeypatch):
    """Two experiments share the lanes; the steps of one are too large."""
    large, small = small_task("group"), small_task()

    def full(function, place):
        if function.__self__.task is large:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return gpu.captured(function, place)

    monkeypatch.setattr(recipe, "Captured", full)
    found = gpu.lanes()
    found.open(large)
    found.submit(large, jobs_of([(0, 20)]), server_of(large))
    (outcome,) = found.train(small, jobs_of([(1, 4)]), server_of(small))
    assert outcome.update.client == 1
