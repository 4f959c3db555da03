"""One lane of a GPU, with what stands in for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vhl.algorithms.base import Server
from vhl.experiment import Engine
from vhl.training.lane import Ticket
from vhl.training.lanes import Lanes
from vhl.training.task import MOMENTUM


def test_no_more_than_a_few_steps_are_ahead_of_the_gpu(gpu, small_task, server_of, jobs_of):
    """Else memory for what is underway would grow, and a short client would wait behind a long one."""
    task, found = small_task(), gpu.lanes(lanes=2)
    tickets = found.submit(task, jobs_of((0, 20), (1, 20), (2, 20)), server_of(task))
    gpu.through = False
    for _ in range(30):
        found.pump()
    assert gpu.steps == {0: 4, 1: 4} and not any(ticket.outcome for ticket in tickets)
    gpu.through = True
    while not all(ticket.done for ticket in tickets):
        found.pump()
    assert sum(gpu.steps.values()) == 15


def test_a_job_is_done_when_the_gpu_is(gpu, small_task, server_of, jobs_of):
    task, found = small_task(), gpu.lanes()
    (ticket,) = found.submit(task, jobs_of((0, 8)), server_of(task))
    gpu.through = False
    for _ in range(10):
        found.pump()
    assert gpu.steps == {0: 2} and ticket.outcome is not None and not ticket.done
    gpu.through = True
    assert ticket.done


def test_a_closed_task_leaves_its_lane_and_no_other(gpu, small_task, server_of, jobs_of):
    """Two tasks that take the same steps, each with a job underway in a lane of its own."""
    left, stays = small_task(), small_task()
    found = gpu.lanes(lanes=2)
    (dropped,), (kept,) = (found.submit(task, jobs_of((0, 20)), server_of(task)) for task in (left, stays))
    for _ in range(3):
        found.pump()
    assert gpu.steps == {0: 3, 1: 2}
    found.close(left)
    for _ in range(10):
        found.pump()
    assert gpu.steps == {0: 3, 1: 5} and dropped.outcome is None and kept.done


def test_a_closed_task_waits_no_more(small_task, server_of, jobs_of):
    left, stays = small_task(), small_task()
    found = Lanes(Engine(), stays.precision)
    (dropped,), (kept,) = (found.submit(task, jobs_of((0, 8)), server_of(task)) for task in (left, stays))
    found.close(left)
    for _ in range(3):
        found.pump()
    assert dropped.outcome is None and kept.done


@pytest.mark.parametrize("lanes", ["a CPU", 1, 2])
def test_chance_inside_the_network_depends_on_seed_round_and_client_alone(
    gpu, small_task, server_of, jobs_of, lanes
):
    """Else dropout would differ from run to run and with the order of the clients."""
    task = small_task("foreign")
    found = Lanes(Engine(), task.precision) if lanes == "a CPU" else gpu.lanes(lanes=lanes)
    server = server_of(task)

    def trained(task, client=1, round_=0):
        (outcome,) = found.train(task, jobs_of((client, 4), round_=round_), server)
        return outcome.update.parameters

    trained(task)  # makes the network, which draws its weights
    torch.manual_seed(11)
    first = trained(task)
    drawn = torch.rand(3)
    torch.manual_seed(11)
    assert torch.rand(3).equal(drawn)  # the chance of others is left alone
    others = trained(task, 2), trained(task, 1, 1), trained(replace(task, seed=1))
    assert trained(task).equal(first)
    # four samples in one batch: without dropout all would agree but for the order
    assert not any(other.allclose(first, atol=1e-3) for other in others)


def test_what_a_trainer_is_made_for(small_task, server_of, jobs_of):
    """The task's steps and the names of vectors, whosever they are; momentum may be there or not."""
    task, (job,) = small_task(training={"batch_size": 4, "freeze_batch_norm": 2}), jobs_of((0, 4))
    server, vector = server_of(task), {"a": torch.zeros(1)}

    def kind(task=task, job=job, server=server):
        return Ticket(task, job, server, {}).kind

    assert kind(replace(task, seed=4)) == kind() == kind(job=replace(job, state={MOMENTUM: torch.zeros(1)}))
    others = [
        kind(small_task("group")),
        kind(server=Server(server.parameters, server.buffers, vector)),
        kind(job=replace(job, state=vector)),
        kind(job=replace(job, round=2)),  # from here on statistics are fixed
    ]
    assert len({kind(), *others}) == 5
    assert kind(job=replace(job, round=1)) == kind() and kind(job=replace(job, round=3)) == others[-1]


def test_an_error_is_raised_to_the_owner_of_the_job(gpu, small_task, server_of, jobs_of):
    """Whoever else keeps the lanes going goes on."""
    ours, found = small_task(), gpu.lanes(lanes=1)
    theirs = small_task("group")
    server = server_of(theirs)
    (broken,) = found.submit(theirs, jobs_of((0, 8)), replace(server, parameters=torch.zeros(3)))
    (fine,) = found.submit(ours, jobs_of((0, 8)), server_of(ours))
    while not fine.done:
        found.pump()
    with pytest.raises(RuntimeError, match="size"):
        assert broken.done
