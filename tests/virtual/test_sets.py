"""Keeping virtual sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np
import pytest

from vhl.config.component import Component
from vhl.data.images import ImageSet, ImageStream
from vhl.errors import VHLError
from vhl.virtual import sets
from vhl.virtual.base import Generator
from vhl.virtual.decoder import Decoder
from vhl.virtual.noise import Noise
from vhl.virtual.sets import fingerprint, virtual_set
from vhl.virtual.stylegan import StyleGAN

SHAPE = (8, 8, 3)
CHANGED: dict[type[Generator], dict[str, Any]] = {
    Noise: {"grid": 4, "deviation": 0.4},
    Decoder: {"latent": 32, "width": 16, "mean_deviation": 0.4, "deviation": 0.9},
    StyleGAN: {
        "style": 32,
        "width": 64,
        "mapping_layers": 2,
        "mean_deviation": 0.4,
        "deviation": 0.25,
        "noise_strength": 0.2,
        "standardise": False,
    },
}
IN_TRAINING = {"crop": 2, "flip": False, "cutout": 4, "mean": (0.4,), "std": (0.3,)}


def get(folder: Path, seed: int = 7, **options: Any) -> tuple[ImageSet, bool]:
    """A set of three classes, and whether it was made rather than read."""
    calls: list[tuple[int, int]] = []
    generator = Noise(per_class=5, **options)
    images = virtual_set(generator, 3, SHAPE, seed, folder, progress=lambda *done: calls.append(done))
    assert calls in ([], [(15, 15)])
    return images, bool(calls)


def stored(folder: Path) -> list[Path]:
    return sorted((folder / "virtual").iterdir())


@pytest.mark.parametrize("kind", CHANGED)
def test_fingerprint_changes_with_every_option_of_a_generator(kind):
    own = set(kind.model_fields) - set(ImageStream.model_fields) - {"classes", "per_class"}
    assert own == set(CHANGED[kind])
    prints = {fingerprint(kind(**{name: value}), 10, SHAPE, 0) for name, value in CHANGED[kind].items()}
    prints.add(fingerprint(kind(), 10, SHAPE, 0))
    assert len(prints) == len(own) + 1


@pytest.mark.parametrize("kind", CHANGED)
def test_fingerprint_ignores_what_happens_in_training(kind):
    assert set(IN_TRAINING) == set(ImageStream.model_fields) - set(Component.model_fields)
    prints = {fingerprint(kind(**{name: value}), 10, SHAPE, 0) for name, value in IN_TRAINING.items()}
    assert prints == {fingerprint(kind(), 10, SHAPE, 0)}


def test_fingerprint_changes_with_kind_counts_shape_seed_and_version(monkeypatch):
    prints = [
        fingerprint(Noise(), 10, SHAPE, 0),
        fingerprint(Noise(), 11, SHAPE, 0),
        fingerprint(Noise(per_class=4_999), 10, SHAPE, 0),
        fingerprint(Noise(), 10, (8, 9, 3), 0),
        fingerprint(Noise(), 10, SHAPE, 1),
        fingerprint(Decoder(), 10, SHAPE, 0),
    ]
    monkeypatch.setattr(Noise, "version", 99)
    prints.append(fingerprint(Noise(), 10, SHAPE, 0))
    assert len(set(prints)) == len(prints)


def test_fingerprint_goes_by_the_resolved_counts():
    assert fingerprint(Noise(per_class=5_000, classes=10), 10, SHAPE, 0) == fingerprint(Noise(), 10, SHAPE, 0)


def test_fingerprints_are_those_of_the_sets_on_users_disks():
    """Whoever changes them makes everybody's sets anew."""
    found = {kind: fingerprint(kind(), 10, (32, 32, 3), 0)[:16] for kind in CHANGED}
    assert found == {Noise: "8ae9e6ae7acc2308", Decoder: "dd09bc8481f8c6aa", StyleGAN: "6d00433ea27f83ae"}


def test_made_once_and_read_back_the_same(tmp_path):
    first, was_made = get(tmp_path)
    assert was_made and (first.images == Noise().generate(3, 5, SHAPE, 7).images).all()
    again, was_made = get(tmp_path, crop=0, flip=False)
    assert not was_made and again.fingerprint() == first.fingerprint()
    assert again.images.dtype == np.uint8 and again.images.shape == first.images.shape
    assert get(tmp_path, seed=8)[1]


def damage(how: str, file: Path) -> None:
    content = bytearray(file.read_bytes())
    if how == "bit":
        content[-100] ^= 1
    file.write_bytes({"cut": content[:-10], "empty": b"", "other": b"not a set" * 99, "bit": content}[how])


@pytest.mark.parametrize("how", ["cut", "empty", "other", "bit"])
def test_a_damaged_file_is_made_again(how, tmp_path):
    first, _ = get(tmp_path)
    damage(how, stored(tmp_path)[0])
    for must_be_made in (True, False):
        again, was_made = get(tmp_path)
        assert was_made == must_be_made and again.fingerprint() == first.fingerprint()


def test_a_file_of_another_set_is_not_taken(tmp_path):
    get(tmp_path, seed=1)
    other = stored(tmp_path)[0].read_bytes()
    made, _ = get(tmp_path, seed=2)
    for file in stored(tmp_path):
        file.write_bytes(other)
    assert get(tmp_path, seed=2)[0].fingerprint() == made.fingerprint()


def test_a_kill_while_writing_leaves_no_file_under_the_final_name(tmp_path, monkeypatch):
    get(tmp_path)
    final = stored(tmp_path)[0]
    final.unlink()

    def killed(_: Any, path: Path, __: Any) -> NoReturn:
        Path(path).write_bytes(b"half")
        assert Path(path).parent == final.parent  # a rename is atomic within a file system only
        assert not final.exists()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(sets, "save_file", killed)
        get(tmp_path)
    assert stored(tmp_path) == []
    get(tmp_path)
    assert stored(tmp_path) == [final]


def test_a_folder_that_cannot_be_written_is_done_without(tmp_path, caplog):
    (tmp_path / "virtual").write_text("a file where the folder should be")
    made, _ = get(tmp_path)
    assert made.images.tobytes() == Noise().generate(3, 5, SHAPE, 7).images.tobytes()
    assert "cannot be written" in caplog.text


class Plain(Noise):
    """A subclass that may change anything: what it inherits says nothing about its images."""


class Versioned(Plain):
    """One whose author answers for them."""

    version: ClassVar[int | None] = 1


def test_only_a_generator_that_states_its_version_is_kept(tmp_path):
    virtual_set(Plain(per_class=2), 2, SHAPE, 0, tmp_path)
    assert not (tmp_path / "virtual").exists()
    virtual_set(Versioned(per_class=2), 2, SHAPE, 0, tmp_path)
    assert len(stored(tmp_path)) == 1


@pytest.mark.parametrize(
    ("made", "wrong"),
    [
        ((np.zeros((4, 8, 8, 3), np.uint8), np.zeros(4, int)), "made tuple; it must make an ImageSet"),
        (ImageSet(np.zeros((2, 8, 8, 1), np.uint8), np.arange(2)), r"of shape \(8, 8, 1\), not \(8, 8, 3\)"),
        (ImageSet(np.zeros((3, *SHAPE), np.uint8), np.arange(3)), "labels from 0 to 2, but classes 0 to 1"),
        (ImageSet(np.zeros((3, *SHAPE), np.uint8), np.zeros(3, int)), "no image of class 1"),
    ],
)
def test_what_no_virtual_set_can_be_is_refused(tmp_path, made, wrong):
    class Wrong(Noise):
        version: ClassVar[int | None] = 1

        def generate(self, *ignored):
            return made

    with pytest.raises(VHLError, match=f"virtual = .*Wrong .*{wrong}"):
        virtual_set(Wrong(), 2, SHAPE, 0, tmp_path)
    assert not (tmp_path / "virtual").exists()
