"""Lanes side by side, on a CPU and with what stands in for a GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine_fixtures import FakePlace
from vhl.config.sections import Engine
from vhl.objectives.vfa import VFA
from vhl.training import lanes
from vhl.training.lanes import Lanes
from vhl.training.precision import Precision
from vhl.training.static import RecordingError

CPU, GPU = torch.device("cpu"), torch.device("cuda")
JOBS = [(4, 3), (2, 12), (9, 7), (1, 20), (5, 20), (3, 1)]
"""Clients, and how many images they have: 1, 3, 2, 5, 5 and 1 steps of batches of four; three are short."""


def on_a_cpu(task, jobs, server):
    return Lanes(Engine(), task.precision).train(task, jobs, server)


def assert_same(found, expected):
    """To the bit."""
    for one, other in zip(found, expected, strict=True):
        assert one.update.client == other.update.client
        assert one.update.parameters.equal(other.update.parameters)
        assert one.update.buffers.equal(other.update.buffers)
        assert all(one.totals[name].equal(other.totals[name]) for name in other.totals)


def assert_close(found, expected):
    """But for rounding: recorded, a short batch is weighed and not cut."""
    for one, other in zip(found, expected, strict=True):
        assert one.update.client == other.update.client
        for name in ("parameters", "buffers"):
            ours, theirs = getattr(one.update, name), getattr(other.update, name)
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(one.totals, other.totals, rtol=1e-4, atol=1e-5)


# --- what is asked for ---------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["capture", "kernels", "compile"])
def test_what_needs_a_gpu_is_refused_on_a_cpu(complains, option):
    with complains(f"engine.{option}", "GPU", "unset"):
        Lanes(Engine(**{option: True}), Precision(CPU, "fp32"))
    Lanes(Engine(**{option: False}), Precision(CPU, "fp32"))


@pytest.mark.parametrize("triton", [True, False])
def test_what_is_unset_follows_the_device(monkeypatch, triton):
    """A CPU beside a GPU is still a CPU: kernels cannot touch its tensors."""
    monkeypatch.setattr(lanes, "has_triton", lambda: triton)
    for device, gpu in ((GPU, True), (CPU, False)):
        found = Lanes(Engine(), Precision(device, "fp32"))
        assert (found.capture, found.kernels, found.overlaps) == (gpu, gpu and triton, gpu)
        assert found.static().records("Steps") == gpu
    chosen = Lanes(Engine(capture=False, kernels=not triton), Precision(GPU, "bf16"))
    assert (chosen.capture, chosen.kernels) == (False, not triton)


@pytest.mark.parametrize(("engine", "count"), [({}, 1), ({"lanes": 1}, 1), ({"lanes": 3}, 3)])
def test_each_lane_has_a_network(small_task, server_of, jobs_of, engine, count):
    """On a CPU they take turns."""
    task, built = small_task(), []

    def build():
        built.append(task.build())
        return built[-1]

    jobs = jobs_of(*[(client, 8) for client in range(5)])
    Lanes(Engine(**engine), task.precision).train(replace(task, build=build), jobs, server_of(task))
    assert len(built) == count


# --- what is trained -----------------------------------------------------------------------------------


def test_outcomes_come_in_the_order_of_the_jobs(small_task, server_of, jobs_of):
    """And whoever else trains changes nothing."""
    task, jobs = small_task(), jobs_of(*JOBS)
    server = server_of(task)
    together = Lanes(Engine(lanes=2), task.precision).train(task, jobs, server)
    assert [outcome.update.client for outcome in together] == [4, 2, 9, 1, 5, 3]
    assert_same(together, [outcome for job in jobs for outcome in on_a_cpu(task, [job], server)])


@pytest.mark.parametrize("network", ["batch", "foreign", "pytorch"])
@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize("count", [1, 3, None])
def test_lanes_of_a_gpu_train_what_a_cpu_does(gpu, small_task, server_of, jobs_of, network, capture, count):
    """Rehearsals leave no trace, and chance inside the network is each client's own."""
    # dropout draws for fillers too, which moves what others get: so that network has no short batches here
    jobs = jobs_of(*JOBS if network != "foreign" else [(client, max(4, n // 4 * 4)) for client, n in JOBS])
    task = small_task(network)
    server = server_of(task)
    found = gpu.lanes(lanes=count, capture=capture).train(task, jobs, server)
    expected = on_a_cpu(task, jobs, server)
    (assert_close if capture and network == "batch" else assert_same)(found, expected)
    assert len(gpu.places) == (count or 4)
    steps = {"batch": 17, "foreign": 16, "pytorch": 14}[network]  # short batches of the last are cut
    assert sum(gpu.steps.values()) == (steps if capture else 0)


@pytest.mark.parametrize("recorded", [True, False])
def test_tasks_that_share_trainers_have_chance_of_their_own(gpu, small_task, server_of, jobs_of, recorded):
    """Experiments that differ in their seeds alone; an objective that draws draws from its own."""
    plain = small_task(features={"last": 16}, objective=VFA(), shared={"means": torch.rand(3, 16)})
    tasks = [replace(plain, seed=seed) for seed in (0, 1)]
    jobs, server = jobs_of((1, 8), (2, 20)), server_of(plain)
    shared = gpu.lanes(lanes=1) if recorded else Lanes(Engine(), plain.precision)
    found = [shared.train(task, jobs, server) for task in tasks]
    assert_same(found[0] + found[1], [o for task in tasks for o in on_a_cpu(task, jobs, server)])
    pulls = [outcome.totals["calibration"].item() for outcomes in found for outcome in outcomes]
    assert len(set(pulls)) == 4


def test_what_one_task_cannot_record_another_may(small_task, server_of, jobs_of, gpu):
    notes, asking = [], small_task("group")

    class Refusing(FakePlace):
        def record(self, work):
            if work.__self__.task is asking:
                raise RecordingError("asks the host")
            return super().record(work)

    found = Lanes(Engine(kernels=False), Precision(GPU, "fp32"), notes.append, lambda _: Refusing(gpu, 0))
    other, jobs = small_task(sizes=(20,)), jobs_of((0, 20))
    for task, steps in ((asking, 0), (other, 5), (asking, 5)):
        found.train(task, jobs, server_of(task))
        assert gpu.steps[0] == steps
    assert notes == ["Steps run uncaptured, which is slower: asks the host"] * 2


# --- how many lanes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("need", "engine", "count"),
    [(10, {}, 4), (27, {}, 3), (30, {}, 2), (39, {}, 2), (40, {}, 1), (90, {}, 1), (90, {"lanes": 3}, 3)],
)
def test_lanes_are_opened_while_they_fit(gpu, small_task, server_of, jobs_of, need, engine, count):
    """One more where half as much again as a lane takes is free of 100: with 39, 61 > 58.5 is left once."""
    gpu.need = need
    task = small_task()
    gpu.lanes(**engine).train(task, jobs_of(*JOBS), server_of(task))
    assert len(gpu.places) == count


def test_a_lane_is_not_opened_for_nothing(gpu, small_task, server_of, jobs_of):
    task, found = small_task(), gpu.lanes()
    for _ in range(3):
        found.train(task, jobs_of((0, 20)), server_of(task))
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
def test_a_long_client_does_not_go_on_alone(gpu, small_task, server_of, jobs_of, steps, moved):
    """Steps of each pump: three lanes open one after the other, and come to an end together if they can."""
    task = small_task(training={"batch_size": 4, "epochs": 2})
    found = gpu.lanes(lanes=3)
    jobs = jobs_of(*[(client, 2 * count) for client, count in enumerate(steps)])
    tickets, done = found.submit(task, jobs, server_of(task)), [0]
    while not all(ticket.done for ticket in tickets):
        found.pump()
        done.append(sum(gpu.steps.values()))
    assert np.diff(done).tolist() == moved


def test_spans_of_jobs_are_there_for_who_asks(small_task, server_of, jobs_of):
    task = small_task()
    found = Lanes(Engine(), task.precision)
    found.train(task, jobs_of((0, 4)), server_of(task))
    found.spans = []
    found.train(task, jobs_of((0, 4), (1, 8)), server_of(task))
    first, second = found.spans  # in the order of the jobs, of which the longer one went first
    assert second.began < second.ended <= first.began < first.ended


# --- too little memory ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fits", [1, 2])
def test_a_lane_that_does_not_fit_is_done_without(gpu, small_task, server_of, jobs_of, fits):
    gpu.fits = fits
    task, found, jobs = small_task(), gpu.lanes(), jobs_of(*JOBS)
    server = server_of(task)
    expected = on_a_cpu(task, jobs, server)
    for _ in range(2):
        assert_close(found.train(task, jobs, server), expected)
    assert len(gpu.places) == fits + 1 and gpu.refused == 1  # tried once, and never again


@pytest.mark.parametrize(
    ("engine", "fits", "words"),
    [({}, 0, ["training.batch_size."]), ({"lanes": 3}, 1, ["training.batch_size", "engine.lanes"])],
)
def test_a_step_that_does_not_fit_is_one_sentence(
    gpu, small_task, server_of, jobs_of, complains, engine, fits, words
):
    gpu.fits = fits
    task = small_task()
    with complains("memory", *words):
        gpu.lanes(**engine).train(task, jobs_of(*JOBS), server_of(task))


def test_a_step_that_does_not_fit_ends_its_own_run_alone(gpu, small_task, server_of, jobs_of):
    """Two experiments share the lanes; the steps of one are too large."""
    large, small = small_task("group"), small_task(sizes=(20,))

    class Small(FakePlace):
        def record(self, work):
            if work.__self__.task is large:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return super().record(work)

    found = Lanes(Engine(kernels=False), Precision(GPU, "fp32"), place=lambda _: Small(gpu, 0))
    found.open(large)
    found.submit(large, jobs_of((0, 20)), server_of(large))
    (outcome,) = found.train(small, jobs_of((1, 4)), server_of(small))
    assert outcome.update.client == 1
