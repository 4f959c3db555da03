"""One lane of a GPU, with what stands in for it."""

from __future__ import annotations

import numpy as np

from vhl.training.task import Job


def jobs_of(*counts):
    """Clients with so many images, in batches of four."""
    return [Job(client, 0, np.arange(count), 0.1, {}) for client, count in enumerate(counts)]


def test_no_more_than_a_few_steps_are_ahead_of_the_gpu(gpu, small_task, server_of):
    """Else memory for what is underway would grow, and a short client would wait behind a long one."""
    task, found = small_task(), gpu.lanes(lanes=2)
    tickets = found.submit(task, jobs_of(20, 20, 20), server_of(task))
    gpu.through = False
    for _ in range(30):
        found.pump()
    assert gpu.steps == {0: 4, 1: 4} and not any(ticket.outcome for ticket in tickets)
    gpu.through = True
    while not all(ticket.done for ticket in tickets):
        found.pump()
    assert sum(gpu.steps.values()) == 15


def test_a_job_is_done_when_the_gpu_is(gpu, small_task, server_of):
    task, found = small_task(), gpu.lanes()
    (ticket,) = found.submit(task, jobs_of(8), server_of(task))
    gpu.through = False
    for _ in range(10):
        found.pump()
    assert gpu.steps == {0: 2} and ticket.outcome is not None and not ticket.done
    gpu.through = True
    assert ticket.done


def test_a_closed_task_leaves_its_lane_and_no_other(gpu, small_task, server_of):
    """Two tasks that take the same steps, each with a job underway in a lane of its own."""
    left, stays = small_task(), small_task()
    found = gpu.lanes(lanes=2)
    (dropped,), (kept,) = (found.submit(task, jobs_of(20), server_of(task)) for task in (left, stays))
    for _ in range(3):
        found.pump()
    assert gpu.steps == {0: 3, 1: 2}
    found.close(left)
    for _ in range(10):
        found.pump()
    assert gpu.steps == {0: 3, 1: 5} and dropped.outcome is None and kept.done
