"""Read back from the file that `wandb sync` would send."""

from __future__ import annotations

import json

import pytest

from tracker_tools import WandbTool

pytest.importorskip("wandb", reason="the extra vhl[wandb] is not installed")

import wandb

from vhl.session.session import Session
from vhl.session.together import together
from vhl.session.trackers.base import remembered
from vhl.session.trackers.wandb import Wandb

TOOL = WandbTool()


def test_runs_side_by_side(experiment, data_dir, tmp_path, expected):
    sessions = [
        Session(experiment.with_(name=name), tmp_path, data_dir=data_dir, trackers=[Wandb()])
        for name in ("one", "two")
    ]
    for _ in together(sessions, at_once=2):
        pass
    for session in sessions:
        assert TOOL.numbers(session.folder) == expected(session.folder)
    assert len({remembered(session.folder, "wandb") for session in sessions}) == 2


def test_the_experiment(experiment, run_in, hostile):
    experiment = experiment.with_(name=hostile)
    run = run_in(experiment, stop=1, trackers=[Wandb()])
    (found,) = TOOL.of_type(run, "run")
    assert (found.display_name, found.project) == (hostile, "vhl")
    config = {item.key: json.loads(item.value_json) for item in found.config.update if item.key[0] != "_"}
    assert config == experiment.model_dump(mode="json")
    (file,) = (run.path / "wandb").glob("offline-run-*/files/experiment.toml")
    assert file.read_text(encoding="utf-8") == experiment.toml()


@pytest.mark.parametrize(
    ("variable", "logged_in", "mode"),
    [
        (None, False, "offline"),
        (None, True, "online"),
        ("offline", True, "offline"),
        ("online", False, "online"),
    ],
)
def test_offline_without_an_account(variable, logged_in, mode, experiment, run_in, monkeypatch):
    """Nothing is sent unless the user has an account and is logged in, or says so."""
    asked = []

    def init(**options):
        asked.append((options["mode"], options["project"]))
        raise ConnectionError("no server")

    def login(**options):
        assert options == {"prompt": False, "verify": False}  # no question, no network
        return logged_in

    monkeypatch.delenv("WANDB_MODE")
    if variable is not None:
        monkeypatch.setenv("WANDB_MODE", variable)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.setattr(wandb, "login", login)
    notes: list[str] = []
    run = run_in(experiment, trackers=[Wandb()], on_note=notes.append)
    assert asked == [(mode, "mine")]
    assert len(notes) == 1 and "no server" in notes[0] and len(run.records()) == 5


def test_switched_off_by_its_own_setting(experiment, run_in, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    notes: list[str] = []
    run = run_in(experiment, trackers=[Wandb()], on_note=notes.append)
    assert len(run.records()) == 5 and notes == [] and not (run.path / "wandb").exists()
