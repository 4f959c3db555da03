"""What every tool holds of a run, whatever became of the run in between."""

from __future__ import annotations

import math

import pytest

from tracker_tools import TOOLS
from vhl.session.trackers.base import remembered


@pytest.fixture(params=TOOLS, ids=lambda tool: tool.name)
def tool(request, tmp_path):
    for package in request.param.packages:
        pytest.importorskip(package, reason=f"the extra vhl[{request.param.name}] is not installed")
    if request.param.name == "mlflow":
        request.getfixturevalue("mlflow_store")
    return request.param


def test_every_number_of_every_round(tool, experiment, run_in, expected):
    run = run_in(experiment, trackers=[tool.tracker()])
    assert tool.numbers(run) == tool.keeps(expected(run))
    assert tool.state(run) == tool.finished


@pytest.mark.parametrize("how", [{"stop": 3}, {"crash": 3}, {"crash": 1}], ids=str)
def test_a_run_that_is_continued(tool, how, experiment, run_in, expected):
    """Under the same name, whatever was there before."""
    run = run_in(experiment, trackers=[tool.tracker()], **how)
    name, before = remembered(run, tool.name), expected(run)
    assert tool.numbers(run) == tool.keeps(before) and tool.state(run) == tool.stopped
    run_in(experiment, resume=True, trackers=[tool.tracker()])
    wanted = expected(run)
    if tool.keeps_first:  # a round that was computed twice took two times
        wanted["seconds"] |= before["seconds"]
    assert tool.numbers(run) == tool.keeps(wanted) and tool.state(run) == tool.finished
    assert remembered(run, tool.name) == name


def test_a_run_that_is_killed(tool, killed, experiment, run_in, expected):
    name, before = remembered(killed, tool.name), expected(killed)
    if tool.survives:
        assert tool.numbers(killed) == tool.keeps(before)
    run_in(experiment, resume=True, trackers=[tool.tracker()])
    wanted = expected(killed)
    if tool.keeps_first:
        wanted["seconds"] |= before["seconds"]
    assert tool.numbers(killed) == tool.keeps(wanted)
    assert remembered(killed, tool.name) == name


def test_more_rounds_later(tool, experiment, run_in, expected):
    run = run_in(experiment.with_(rounds=2), trackers=[tool.tracker()])
    run_in(experiment, resume=True, trackers=[tool.tracker()])
    assert tool.numbers(run) == tool.keeps(expected(run))


def test_numbers_that_are_none(tool, experiment, run_in):
    run, tracker = run_in(experiment, stop=1), tool.tracker()
    tracker.begin(run, experiment)
    tracker.log(1, {"inf": float("inf"), "nan": float("nan"), "bytes": 2**53 + 1.0}, 1e9)
    tracker.end(finished=True)
    found = {name: of_round[1] for name, of_round in tool.numbers(run).items()}
    assert found["inf"] > 1e308 and math.isnan(found["nan"])  # MLflow's largest number stands for infinity
    assert tool.keeps({"bytes": {1: 2**53 + 1.0}})["bytes"][1] == found["bytes"]
