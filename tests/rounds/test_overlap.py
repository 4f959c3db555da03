"""Rounds that overlap: a GPU begins the next one while this one is evaluated."""

from __future__ import annotations

import pytest

from vhl.rounds.evaluation import Fetch

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


def assert_same_rest(one, other):
    """Both run to their end."""
    assert [comparable(record) for record in one] == [comparable(record) for record in other]
    assert_same_state(one, other)


@pytest.fixture
def overlapped(gpu, digit_simulation):
    """A simulation whose clients are trained in lanes of a GPU; ``submitted`` lists the rounds handed in."""

    def make(**settings):
        simulation = digit_simulation(**{**EVERYTHING, **settings})
        simulation.lanes, simulation.submitted = gpu.lanes(), []
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
    assert_same_rest(simulation, expected)


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


def test_a_new_task_while_a_job_of_a_closed_one_is_underway(overlapped, digit_simulation):
    """Room is made by what no one uses any more, and a lane was still at it."""
    left, other = overlapped(), overlapped(objective="plain")
    other.lanes = left.lanes
    left.poll()
    left.lanes.pump()  # one lane is at the first job
    left.close()
    assert_same_rest(other, digit_simulation(**EVERYTHING | {"objective": "plain"}))
    assert_same_rest(left, digit_simulation(**EVERYTHING))
