from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from vhl.config.listing import available
from vhl.data.check import Report


def cifar10(directory: Path) -> None:
    """CIFAR-10's archive in its official form, but with two images a file."""
    directory.mkdir()
    with tarfile.open(directory / "cifar-10-binary.tar.gz", "w:gz") as archive:
        for name in [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]:
            content = b"".join(bytes([label]) + bytes(3 * 32 * 32) for label in (0, 9))
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def test_every_source_and_whether_it_is_there(vhl: Any) -> None:
    cifar10(Path("data"))
    answer = vhl("data", "list", "--data-dir=data")
    rows = {line.split()[0]: line for line in answer.out.splitlines()[:-1]}
    assert answer.code == 0 and list(rows) == list(available("sources"))
    assert "present" in rows["cifar10"] and " B " in rows["cifar10"]
    assert "absent" in rows["svhn"] and "built in" in rows["digits"] and "your own" in rows["folder"]
    assert answer.out.splitlines()[-1] == "Files lie in data."


def test_the_data_directory_comes_from_the_environment(vhl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VHL_DATA", "over/there")
    assert vhl("data", "list").out.splitlines()[-1] == "Files lie in over/there."


def test_what_a_check_finds(vhl: Any) -> None:
    answer = vhl("data", "check", "digits")
    first, second = answer.out.splitlines()
    assert answer.code == 0
    assert first == "digits: 1,438 training and 359 test images of 10 classes, 8×8 pixels, grey."
    assert "no official version" in second


def test_a_check_of_files_that_are_not_there(vhl: Any) -> None:
    vhl("data", "check", "svhn", "--data-dir=here").complains("here", "vhl data get svhn --data-dir here")


def test_a_check_of_own_pictures(vhl: Any, pictures: Path) -> None:
    answer = vhl("data", "check", f"folder:{pictures}")
    assert "32 training and 8 test images of 2 classes" in answer.out and answer.code == 0


@pytest.mark.parametrize("official", [True, False])
def test_a_check_fails_where_files_are_not_official(
    vhl: Any, monkeypatch: pytest.MonkeyPatch, official: bool
) -> None:
    report = Report("cifar10", True, official, "A remark.", 50_000, 10_000, 10, (32, 32, 3))
    monkeypatch.setattr("vhl.data.check.check", lambda name, directory: report)
    answer = vhl("data", "check", "cifar10")
    assert "50,000 training and 10,000 test images of 10 classes, 32×32 pixels, colour." in answer.out
    if official:
        assert answer.code == 0 and answer.out.endswith("A remark.\n")
    else:
        answer.complains("cifar10", "A remark.")


def test_getting_says_what_was_fetched(vhl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def get(name: str, directory: Path, *, console: object) -> list[Path]:
        asked.append((name, directory))
        return [directory / "a.gz", directory / "[b].gz"]

    monkeypatch.setattr("vhl.data.download.get", get)
    answer = vhl("data", "get", "fmnist", "--data-dir=place")
    assert asked == [("fmnist", Path("place"))]
    assert answer.out.splitlines() == ["place/a.gz", "place/[b].gz"] and answer.code == 0


def test_getting_what_needs_no_download(vhl: Any) -> None:
    answer = vhl("data", "get", "digits")
    assert answer.code == 0 and "nothing to fetch" in answer.out
    vhl("data", "get", "folder:x").complains("folder:x", "nothing to fetch")
    vhl("data", "get", "cifr10").complains("'cifr10'", "'cifar10'")
