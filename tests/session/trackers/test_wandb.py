"""Read back from the file that `wandb sync` would send.

The package has no reader of it in Python. It is a log as LevelDB writes them: blocks of 32 KiB, in them
pieces of records, each with a checksum (4 bytes), its length (2) and whether it is a whole, a first, a middle
or a last piece (1); the first block begins with 7 bytes that name the format.
"""

from __future__ import annotations

import json
import math
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("wandb", reason="the extra vhl[wandb] is not installed")

import wandb
from wandb.proto.wandb_internal_pb2 import Record

from vhl.experiment import Experiment
from vhl.runs.folder import RunFolder
from vhl.session.trackers.base import remembered
from vhl.session.trackers.wandb import Wandb

Run = Callable[..., RunFolder]
Numbers = dict[str, dict[int, float]]
Expected = Callable[[RunFolder], Numbers]
BLOCK = 32_768
WHOLE, LAST = 1, 4


def lines(run: RunFolder) -> list[Record]:
    """All of the file; its service may write the end of it after it said that it has."""
    (file,) = (run.path / "wandb").glob("offline-run-*/run-*.wandb")
    for _ in range(200):
        found = list(read(file.read_bytes()))
        if found and found[-1].WhichOneof("record_type") == "exit":
            return found
        time.sleep(0.05)
    raise AssertionError(f"{file} has no end")


def read(content: bytes) -> Iterator[Record]:
    assert content[:4] in (b":W&B", b"")
    position, record = 7, b""
    while position + 7 <= len(content):
        left = BLOCK - position % BLOCK
        if left < 7:  # too little for another piece
            position += left
            continue
        _, size, kind = struct.unpack_from("<IHB", content, position)
        if position + 7 + size > len(content):
            return
        record += content[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (WHOLE, LAST):
            yield Record.FromString(record)
            record = b""


def numbers(run: RunFolder) -> Numbers:
    found: Numbers = {}
    for line in lines(run):
        if line.WhichOneof("record_type") != "history":
            continue
        row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in line.history.item}
        for name, value in row.items():
            if not name.startswith("_"):
                rounds = found.setdefault(name, {})
                assert row["_step"] not in rounds, "a round appears twice"
                rounds[row["_step"]] = value
    return found


def description(run: RunFolder) -> Any:
    (found,) = [line.run for line in lines(run) if line.WhichOneof("record_type") == "run"]
    return found


def exit_codes(run: RunFolder) -> list[int]:
    return [line.exit.exit_code for line in lines(run) if line.WhichOneof("record_type") == "exit"]


def test_every_number_of_every_round(experiment: Experiment, run_in: Run, expected: Expected) -> None:
    run = run_in(experiment, trackers=[Wandb()])
    assert numbers(run) == expected(run)
    assert exit_codes(run) == [0]
    assert description(run).run_id == remembered(run, "wandb")


@pytest.mark.parametrize("how", [{"stop": 3}, {"crash": 3}], ids=str)
def test_a_run_that_is_continued(
    how: dict[str, int], experiment: Experiment, run_in: Run, expected: Expected
) -> None:
    """One file with everything, under the same name, whatever was there before."""
    run = run_in(experiment, trackers=[Wandb()], **how)
    assert list(numbers(run)["drift"]) == [1, 2, 3] and exit_codes(run) == [1]
    identity = description(run).run_id
    run_in(experiment, resume=True, trackers=[Wandb()])
    assert description(run).run_id == identity
    assert numbers(run) == expected(run) and exit_codes(run) == [0]


def test_a_run_that_is_killed(
    killed: RunFolder, experiment: Experiment, run_in: Run, expected: Expected
) -> None:
    identity = remembered(killed, "wandb")
    run_in(experiment, resume=True, trackers=[Wandb()])
    assert description(killed).run_id == identity is not None
    assert numbers(killed) == expected(killed)


def test_runs_side_by_side(
    experiment: Experiment, data_dir: Path, tmp_path: Path, expected: Expected
) -> None:
    from vhl.session.session import Session
    from vhl.session.together import together

    sessions = [
        Session(experiment.with_(name=name), tmp_path, data_dir=data_dir, trackers=[Wandb()])
        for name in ("one", "two")
    ]
    for _ in together(sessions, at_once=2):
        pass
    for session in sessions:
        assert numbers(session.folder) == expected(session.folder)
    assert len({remembered(session.folder, "wandb") for session in sessions}) == 2


def test_the_experiment(experiment: Experiment, run_in: Run, hostile: str) -> None:
    experiment = experiment.with_(name=hostile)
    run = run_in(experiment, stop=1, trackers=[Wandb()])
    found = description(run)
    assert (found.display_name, found.project) == (hostile, "vhl")
    config = {item.key: json.loads(item.value_json) for item in found.config.update if item.key[0] != "_"}
    assert config == experiment.model_dump(mode="json")
    (file,) = (run.path / "wandb").glob("offline-run-*/files/experiment.toml")
    assert file.read_text(encoding="utf-8") == experiment.toml()


def test_numbers_that_are_none(experiment: Experiment, run_in: Run) -> None:
    run = run_in(experiment, stop=1)
    tracker = Wandb()
    tracker.begin(run, experiment)
    tracker.log(1, {"inf": float("inf"), "nan": float("nan"), "bytes": 2**53 + 1}, 1e9)
    tracker.end(finished=True)
    found = {name: of_round[1] for name, of_round in numbers(run).items()}
    assert float(found["inf"]) == math.inf and math.isnan(float(found["nan"]))
    assert found["bytes"] == 2**53 + 1


@pytest.mark.parametrize(
    ("variable", "logged_in", "mode"),
    [
        (None, False, "offline"),
        (None, True, "online"),
        ("offline", True, "offline"),
        ("online", False, "online"),
    ],
)
def test_offline_without_an_account(
    variable: str | None,
    logged_in: bool,
    mode: str,
    experiment: Experiment,
    run_in: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is sent unless the user has an account and is logged in, or says so."""
    asked: list[dict[str, Any]] = []

    def init(**options: Any) -> Any:
        asked.append(options)
        raise ConnectionError("no server")

    def login(**options: Any) -> bool:
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
    assert [(options["mode"], options["project"]) for options in asked] == [(mode, "mine")]
    assert len(notes) == 1 and "no server" in notes[0] and len(run.records()) == 5


def test_switched_off_by_its_own_setting(
    experiment: Experiment, run_in: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    notes: list[str] = []
    run = run_in(experiment, trackers=[Wandb()], on_note=notes.append)
    assert len(run.records()) == 5 and notes == [] and not (run.path / "wandb").exists()
