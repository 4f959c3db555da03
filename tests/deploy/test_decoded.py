from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vhl.data.sources.folder import Folder
from vhl.deploy.decoded import load_decoded


@pytest.fixture(autouse=True)
def _open_to_all() -> Iterator[None]:
    """As where everybody may read what one writes."""
    mask = os.umask(0o000)
    yield
    os.umask(mask)


def picture(file: Path, grey: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8), grey, np.uint8)).save(file)


@pytest.fixture
def source(tmp_path: Path) -> Folder:
    for label in "ab":
        for number in range(5):
            picture(tmp_path / "images" / label / f"{number}.png", number)
    return Folder(path=str(tmp_path / "images"))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def kept(store: Path) -> list[Path]:
    return sorted((store / "decoded").iterdir())


def test_images_are_read_back_until_something_changes(source, tmp_path):
    first = load_decoded(source, 0, tmp_path / "store")
    file = tmp_path / "images" / "a" / "0.png"
    times, size = file.stat(), file.stat().st_size
    file.write_bytes(bytes(size))  # no picture any more, but nothing that one sees from outside
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    again = load_decoded(source, 0, tmp_path / "store")
    assert np.array_equal(first.train.images, again.train.images) and first.classes == again.classes
    picture(file, 0)
    picture(tmp_path / "images" / "a" / "5.png", 200)
    changed = load_decoded(source, 0, tmp_path / "store")
    assert sum(map(len, (changed.train, changed.test))) == 11


def test_nobody_else_may_read_them(source, tmp_path, monkeypatch):
    unfinished, replace = list[int](), Path.replace

    def watched(self: Path, target: Path) -> Path:
        unfinished.append(mode(self))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", watched)
    load_decoded(source, 0, tmp_path / "store")
    (file,) = kept(tmp_path / "store")
    assert (mode(file), mode(file.parent), unfinished) == (0o600, 0o700, [0o600])
    assert mode(tmp_path / "store") == 0o777


def test_a_folder_that_others_could_read_is_closed(source, tmp_path):
    (tmp_path / "store" / "decoded").mkdir(parents=True)
    load_decoded(source, 0, tmp_path / "store")
    assert mode(tmp_path / "store" / "decoded") == 0o700


def test_of_a_folder_that_changes_one_decoding_is_kept(source, tmp_path):
    store = tmp_path / "store"
    for number in range(5):
        picture(tmp_path / "others" / "a" / f"{number}.png", number)
    load_decoded(Folder(path=str(tmp_path / "others")), 0, store)
    (others,) = kept(store)
    load_decoded(source, 0, store)
    (first,) = set(kept(store)) - {others}
    first.with_name(first.name + ".part").write_bytes(b"what a kill has left")
    (tmp_path / "images" / "a" / "0.png").unlink()
    load_decoded(source, 0, store)
    assert others in kept(store) and first not in kept(store) and len(kept(store)) == 2


def test_a_store_that_cannot_be_written_to_keeps_nothing(source, tmp_path):
    (tmp_path / "store").write_text("a file")
    assert len(load_decoded(source, 0, tmp_path / "store").train) == 8
