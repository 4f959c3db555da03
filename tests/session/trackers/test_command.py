"""`vhl run` and `vhl sweep` with --track."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vhl.cli.main import main
from vhl.rounds.simulation import Simulation

TINY = (
    "data.size=8",
    "partition.clients=3",
    "clients_per_round=1",
    "model.width=4",
    "virtual.per_class=3",
    "objective.virtual_batch=8",
    "rounds=2",
)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VHL_DATA", str(tmp_path_factory.getbasetemp() / "vhl-data"))
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def rounds_tracked(run: Path) -> list[int]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(run / "tensorboard"))
    accumulator.Reload()
    return [event.step for event in accumulator.Scalars("drift")]


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_a_tracker_that_is_none(command, capsys, tmp_path):
    """Said before anything is done."""
    assert main([command, *TINY, "--track", "tensorboard,mlfow"]) == 2
    assert capsys.readouterr().err == "vhl: There is no tracker called 'mlfow'; did you mean 'mlflow'?\n"
    assert list(tmp_path.iterdir()) == []


def test_runs_are_tracked(capsys):
    pytest.importorskip("tensorboard", reason="the extra vhl[tensorboard] is not installed")
    assert main(["run", *TINY, "name=x", "--seeds=0,1", "--at-once=2", "--track", "tensorboard"]) == 0
    assert main(["sweep", *TINY, "training.lr=0.1,0.2", "--track=tensorboard"]) == 0
    assert capsys.readouterr().err == ""
    for run in ("x-seed0", "x-seed1", "sweep/training.lr=0.1", "sweep/training.lr=0.2"):
        assert rounds_tracked(Path("runs") / run) == [1, 2]


def test_a_run_that_is_stopped_says_how_to_go_on(capsys, monkeypatch):
    """And what it says works."""
    pytest.importorskip("tensorboard", reason="the extra vhl[tensorboard] is not installed")
    land = Simulation._land

    def stopped(simulation: Simulation, *what: Any) -> Any:
        if simulation.state.round == 1:
            raise KeyboardInterrupt
        return land(simulation, *what)

    with monkeypatch.context() as patch:
        patch.setattr(Simulation, "_land", stopped)
        assert main(["run", *TINY, "name=x", "--track=tensorboard"]) == 130
    said = "`vhl run runs/x --resume --track tensorboard` continues."
    assert said in capsys.readouterr().err and rounds_tracked(Path("runs/x")) == [1]
    assert main(said.split("`")[1].split()[1:]) == 0
    assert rounds_tracked(Path("runs/x")) == [1, 2]
    lines = Path("runs/x/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2]
