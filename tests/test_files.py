from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from vhl.files import read_json, write_bytes, write_json, write_tensors


def test_a_file_is_written_with_its_folders(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a" / "b" / "file", b"content")
    assert (tmp_path / "a" / "b" / "file").read_bytes() == b"content"
    assert [file.name for file in (tmp_path / "a" / "b").iterdir()] == ["file"]


@pytest.mark.parametrize("stop", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_what_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: BaseException, function: str
) -> None:
    write_bytes(tmp_path / "file", b"old")

    def fail(*_: object) -> None:
        raise stop

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail) if function == "fsync" else patch.setattr(Path, "replace", fail)
        with pytest.raises((Exception, KeyboardInterrupt)) as caught:
            write_bytes(tmp_path / "file", b"new content")
    assert ("No space left" in str(caught.value)) == isinstance(stop, OSError)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bytes(tmp_path / "file", b"old")
    seen = []
    monkeypatch.setattr(os, "fsync", lambda _: seen.append((tmp_path / "file").read_bytes()))
    write_bytes(tmp_path / "file", b"new")
    assert seen == [b"old"] and (tmp_path / "file").read_bytes() == b"new"


def test_the_bytes_reach_the_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut could leave an empty file under the right name."""
    order = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (order.append("fsync"), fsync(fd)))
    monkeypatch.setattr(Path, "replace", lambda self, to: (order.append("rename"), replace(self, to)))
    write_bytes(tmp_path / "file", b"new")
    assert order == ["fsync", "rename"]


def test_tensors_come_back_to_the_bit(tmp_path: Path) -> None:
    strided = torch.randn(4, 6).t()
    write_tensors(tmp_path / "file", {"strided": strided, "empty": torch.zeros(0), "whole": torch.arange(3)})
    found = load_file(tmp_path / "file")
    assert found["strided"].equal(strided)
    assert found["empty"].numel() == 0 and found["whole"].tolist() == [0, 1, 2]


def test_json_comes_back(tmp_path: Path) -> None:
    write_json(tmp_path / "file.json", {"a": [1, None, 0.1]})
    assert read_json(tmp_path / "file.json") == {"a": [1, None, 0.1]}


def test_json_that_is_missing_or_damaged(tmp_path: Path, complains: Any) -> None:
    with complains(tmp_path, "data.json is missing"):
        read_json(tmp_path / "data.json")
    (tmp_path / "data.json").write_text('{"half', encoding="utf-8")
    with complains(tmp_path / "data.json", "cannot be read"):
        read_json(tmp_path / "data.json")
