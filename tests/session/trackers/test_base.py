from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from vhl.experiment import Experiment, dotted
from vhl.runs.folder import RunFolder
from vhl.runs.record import Record
from vhl.session.session import Session
from vhl.session.trackers.base import (
    TRACKERS,
    Tracker,
    class_names,
    metrics,
    named,
    parameters,
    remember,
    remembered,
)

Run = Callable[..., RunFolder]


# --- names ---------------------------------------------------------------------------------------------


def test_the_numbers_of_a_round():
    record = Record(
        round=7,
        accuracy=0.5,
        natural_accuracy=0.75,
        per_class=[0.25, None],
        loss={"natural": 1.5, "a/b": float("inf")},
        train_accuracy=None,
        drift=0.125,
        learning_rate=0.01,
        samples=640,
        compute=2.5,
        server={"steps": 7},
        bytes=2**40 + 1,
        clients=[3, 4, 9],
        left_out=[4, 9],
        seconds=0.25,
    )
    assert metrics(record, ["cat", "dog"]) == {
        "accuracy": 0.5,
        "natural_accuracy": 0.75,
        "per_class/cat": 0.25,
        "server/steps": 7,
        "loss/natural": 1.5,
        "loss/a_b": float("inf"),
        "drift": 0.125,
        "learning_rate": 0.01,
        "samples": 640,
        "compute": 2.5,
        "bytes": 2**40 + 1,
        "left_out": 2,
        "seconds": 0.25,
    }


@pytest.mark.parametrize(
    ("classes", "names"),
    [
        (["0", "1"], ["0", "1"]),
        (["a.b", "..", "", "c d-e_f"], ["a_b", "__", "_", "c d-e_f"]),
        (["a/b", "a_b"], ["0", "1"]),
        (["x" * 300 + "1", "x" * 300 + "2", "y"], ["0", "1", "2"]),
    ],
)
def test_names_of_classes(classes, names):
    assert class_names(classes) == names


def test_parameters_are_the_settings(experiment):
    found = parameters(experiment)
    settings = dotted(experiment)
    assert found["training.batch_size"] == 16 and found["objective.name"] == "vhl"
    assert found["keep_at"] == "[1, 5]"
    assert set(settings) - set(found) == {key for key, value in settings.items() if value is None} != set()
    assert all(isinstance(value, bool | int | float | str) for value in found.values())
    others = {key: value for key, value in found.items() if not isinstance(settings[key], list)}
    assert others == {key: settings[key] for key in others}


def test_what_a_tool_calls_a_run(tmp_path):
    run = RunFolder(tmp_path)
    assert remembered(run, "one") is None
    remember(run, "one", "a")
    remember(run, "two", "b")
    remember(run, "one", "c")
    assert (remembered(run, "one"), remembered(run, "two"), remembered(run, "three")) == ("c", "b", None)


# --- trackers by name ----------------------------------------------------------------------------------


def test_a_name_that_is_none(complains):
    with complains("'tensorbord'", "did you mean 'tensorboard'?"):
        named(["tensorbord"])
    with complains("''", "choose from mlflow, tensorboard, wandb."):
        named([""])


@pytest.mark.parametrize(
    ("name", "package"),
    [("tensorboard", "tensorboard"), ("mlflow", "mlflow"), ("mlflow", "alembic"), ("wandb", "wandb")],
)
def test_a_package_that_is_not_installed(name, package, complains, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with complains(package, f"pip install 'vhl[{name}]'"):
        named([name])


def test_no_tool_is_imported_unless_asked_for(killed_process):
    assert killed_process.imported == []


def test_nobody_is_called(killed_process):
    """By the tools, from our process; a service of Weights & Biases runs on this machine."""
    assert [a for a in killed_process.called if "127.0.0.1" not in a and not a.startswith("/")] == []


def test_a_tracker_named_twice_is_one():
    pytest.importorskip("tensorboard", reason="the extra vhl[tensorboard] is not installed")
    assert [type(tracker).__name__ for tracker in named(["tensorboard", "tensorboard"])] == ["TensorBoard"]
    assert set(TRACKERS) == {"tensorboard", "mlflow", "wandb"}


# --- following a run -----------------------------------------------------------------------------------


class Diary(Tracker):
    """Writes down what it is told; ``keeps`` what an earlier one was told, as a server does."""

    def __init__(self, keeps: Diary | None = None, fails: str = "") -> None:
        self.lines: list[Any] = [] if keeps is None else list(keeps.lines)
        self.times: list[float] = []
        self.fails = fails

    def begin(self, run: RunFolder, experiment: Experiment) -> int:
        self.fail("begin")
        assert run.exists and run.experiment() == experiment
        self.lines.append("begin")
        return max([line for line in self.lines if isinstance(line, int)], default=0)

    def log(self, round_: int, metrics: Mapping[str, float], when: float) -> None:
        self.fail(round_)
        assert metrics["samples"] > 0
        self.lines.append(round_)
        self.times.append(when)

    def end(self, finished: bool) -> None:
        self.lines.append("finished" if finished else "stopped")
        self.fail("end")

    def fail(self, where: object) -> None:
        if str(where) == self.fails:
            raise OSError(28, "No space left on device\nand a second line")


def test_every_round_as_it_comes(experiment, data_dir, tmp_path):
    diary = Diary()
    for record in Session(experiment, tmp_path, data_dir=data_dir, trackers=[diary]):
        assert diary.lines[-1] == record.round
    assert diary.lines == ["begin", 1, 2, 3, 4, 5, "finished"]


def test_a_run_that_is_stopped_and_continued(experiment, run_in):
    diary = Diary()
    run_in(experiment, stop=3, trackers=[diary])
    assert diary.lines == ["begin", 1, 2, 3, "stopped"]
    later, fresh = Diary(keeps=diary), Diary()
    run_in(experiment, resume=True, trackers=[later, fresh])
    assert later.lines == [*diary.lines, "begin", 4, 5, "finished"]
    assert fresh.lines == ["begin", 1, 2, 3, 4, 5, "finished"]  # it was not there before


def test_a_round_that_is_computed_again_is_told_once(experiment, run_in):
    diary = Diary()
    run = run_in(experiment, crash=3, trackers=[diary])
    assert diary.lines == ["begin", 1, 2, 3, "stopped"]
    assert run.manifest() is not None and run.manifest()["round"] == 2  # type: ignore[index]
    later, fresh = Diary(keeps=diary), Diary()
    run_in(experiment, resume=True, trackers=[later, fresh])
    assert later.lines == [*diary.lines, "begin", 4, 5, "finished"]
    assert fresh.lines == ["begin", 1, 2, 3, 4, 5, "finished"]


def test_a_finished_run_can_be_told_of(experiment, run_in):
    """As if it had just been computed, without a break."""
    run = run_in(experiment)
    diary, now = Diary(), time.time()
    run_in(experiment, resume=True, trackers=[diary])
    assert diary.lines == ["begin", 1, 2, 3, 4, 5, "finished"]
    seconds = [record.seconds for record in run.records()]
    steps = [later - earlier for earlier, later in zip(diary.times, diary.times[1:], strict=False)]
    assert steps == pytest.approx(seconds[1:], abs=1e-5)
    assert now <= diary.times[-1] <= time.time()


def test_more_rounds_later(experiment, run_in):
    diary = Diary()
    run_in(experiment.with_(rounds=3), trackers=[diary])
    later = Diary(keeps=diary)
    run_in(experiment, resume=True, trackers=[later])
    assert later.lines == ["begin", 1, 2, 3, "finished", "begin", 4, 5, "finished"]


@pytest.mark.parametrize(
    ("fails", "heard"),
    [
        ("begin", ["stopped"]),
        ("1", ["begin", "stopped"]),
        ("3", ["begin", 1, 2, "stopped"]),
        ("5", ["begin", 1, 2, 3, 4, "stopped"]),
        ("end", ["begin", 1, 2, 3, 4, 5, "finished", "stopped"]),
    ],
)
def test_a_tracker_that_fails(fails, heard, experiment, run_in, tmp_path):
    """It is told no more, the user is told once; the run and another tracker go on."""
    bad, good, notes = Diary(fails=fails), Diary(), list[str]()
    run = run_in(experiment, trackers=[bad, good], on_note=notes.append)
    assert bad.lines == heard
    assert good.lines == ["begin", 1, 2, 3, 4, 5, "finished"]
    assert [record.round for record in run.records()] == [1, 2, 3, 4, 5]
    assert run.manifest() is not None and run.manifest()["round"] == 5  # type: ignore[index]
    assert len(notes) == 1 and "\n" not in notes[0]
    assert all(word in notes[0] for word in ("Diary", "tiny", "No space left on device", "--resume"))


def test_ctrl_c_while_a_tracker_writes(experiment, run_in):
    """No failure of the tracker's: the run stops, with its rounds saved."""

    class Interrupted(Diary):
        def log(self, round_: int, metrics: Mapping[str, float], when: float) -> None:
            super().log(round_, metrics, when)
            if round_ == 3:
                raise KeyboardInterrupt

    tracker, notes = Interrupted(), list[str]()
    with pytest.raises(KeyboardInterrupt):
        run_in(experiment, trackers=[tracker], on_note=notes.append)
    assert tracker.lines == ["begin", 1, 2, 3, "stopped"] and notes == []
    later = Diary()
    run = run_in(experiment, resume=True, trackers=[later])
    assert later.lines == ["begin", 1, 2, 3, 4, 5, "finished"]
    assert [json.loads(line)["round"] for line in (run.path / "metrics.jsonl").open()] == [1, 2, 3, 4, 5]


def test_a_run_that_is_refused_tells_nobody(experiment, run_in, complains):
    run_in(experiment, stop=1)
    diary = Diary()
    with complains("--resume"):
        run_in(experiment, trackers=[diary])
    assert diary.lines == []
