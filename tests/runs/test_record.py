"""Rounds in their file: a line each, whole or not at all."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vhl.runs.folder import RunFolder
from vhl.runs.record import Record

Make = Callable[..., Record]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def test_one_line_a_round_that_comes_back_as_it_was(folder: RunFolder, a_record: Make) -> None:
    terms = {"natural": 0.1 + 0.2, "virtual": 1 / 3}
    records = [
        a_record(1, loss=terms),
        a_record(2, 0.1, per_class=[0.5, None], left_out=[3], server={"steps": 7}),
    ]
    for record in records:
        folder.append(record)
    assert folder.records() == records
    lines = (folder.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2]
    assert json.loads(lines[1])["accuracy"] == 0.1


def test_a_diverging_run_stays_readable(folder: RunFolder, a_record: Make) -> None:
    folder.append(a_record(1, drift=math.inf, loss={"natural": math.nan}))
    folder.append(a_record(2))
    folder.cut_back(1)
    (record,) = folder.records()
    assert record.drift == math.inf and math.isnan(record.loss["natural"])


def test_a_line_cut_off_by_a_kill_is_no_record(folder: RunFolder, a_record: Make) -> None:
    assert folder.records() == []
    folder.append(a_record(1))
    folder.append(a_record(2))
    whole = (folder.path / "metrics.jsonl").read_bytes()
    first = whole.index(b"\n") + 1
    for length in (*range(first, len(whole), 7), len(whole) - 1):
        (folder.path / "metrics.jsonl").write_bytes(whole[:length])
        assert folder.records() == [a_record(1)]


@pytest.mark.parametrize("line", [b'{"round": 2}', b"", b'{"round', b"\xff\xfe", b"[]"])
def test_a_damaged_line_is_named(folder: RunFolder, complains: Any, a_record: Make, line: bytes) -> None:
    folder.append(a_record(1))
    file = folder.path / "metrics.jsonl"
    file.write_bytes(file.read_bytes() + line + b"\n")
    with complains(file, "line 2"):
        folder.records()


def test_cut_back_drops_the_rounds_after(folder: RunFolder, a_record: Make) -> None:
    for round_ in range(1, 5):
        folder.append(a_record(round_))
    with (folder.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"round": 5, "acc')
    folder.cut_back(2)
    assert folder.records() == [a_record(1), a_record(2)]
    folder.append(a_record(3))
    assert [record.round for record in folder.records()] == [1, 2, 3]


@pytest.mark.parametrize(
    ("steps", "server"), [(None, None), (0, {"distillation_steps": 0}), (6, {"distillation_steps": 6})]
)
def test_the_steps_of_a_distillation_had_a_field_of_their_own(
    a_record: Make, steps: Any, server: Any
) -> None:
    """In version 0.1."""
    old = a_record(1).model_dump(exclude={"server"}) | {"distillation_steps": steps}
    assert Record(**old) == a_record(1, server=server)
