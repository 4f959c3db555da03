from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from official_forms import write
from vhl.config.listing import available
from vhl.data.check import check, listing
from vhl.data.sources._official import Fingerprint
from vhl.data.sources.cifar10 import CIFAR10
from vhl.data.sources.fmnist import FMNIST
from vhl.errors import VHLError


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """A tiny CIFAR-10 folder of known images whose fingerprint is declared the official one."""
    written = write("cifar10 binary folder", tmp_path)
    monkeypatch.setattr(CIFAR10, "fingerprint", Fingerprint.of(written.read()))
    return written.files[0].parent


@pytest.fixture
def fmnist(tmp_path, monkeypatch):
    """Tiny files of Fashion-MNIST that are declared the official ones."""
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in write("fmnist", tmp_path).files]
    declared = [replace(file, sha256=own) for file, own in zip(FMNIST.official, digests, strict=True)]
    monkeypatch.setattr(FMNIST, "official", tuple(declared))


def swap_first_two(file):
    raw = file.read_bytes()
    file.write_bytes(raw[3073:6146] + raw[:3073] + raw[6146:])


def test_official_images_are_known_by_their_content(cifar, tmp_path):
    report = check("cifar10", tmp_path)
    assert report.readable and report.official
    assert (report.train, report.test, report.classes, report.shape) == (10, 3, 10, (32, 32, 3))


def test_test_images_may_be_in_another_order_and_training_images_may_not(cifar, tmp_path):
    swap_first_two(cifar / "test_batch.bin")
    assert check("cifar10", tmp_path).official
    swap_first_two(cifar / "data_batch_3.bin")
    report = check("cifar10", tmp_path)
    assert report.readable and report.official is False and report.remark.endswith(": train.")


def test_a_changed_pixel_is_noticed(cifar, tmp_path):
    raw = bytearray((cifar / "test_batch.bin").read_bytes())
    raw[100] ^= 1
    (cifar / "test_batch.bin").write_bytes(raw)
    report = check("cifar10", tmp_path)
    assert report.official is False and report.remark.endswith(": test.")


def test_files_are_compared_byte_by_byte_where_there_is_one_format(fmnist, tmp_path):
    report = check("fmnist", tmp_path)
    assert report.readable and report.official and (report.train, report.test) == (10, 3)
    with (tmp_path / FMNIST.official[1].path).open("r+b") as file:
        file.seek(4)
        file.write(b"time")  # when it was compressed: the labels stay the same
    report = check("fmnist", tmp_path)
    assert report.readable and report.official is False
    assert FMNIST.official[1].path in report.remark and FMNIST.official[0].path not in report.remark


def test_what_cannot_be_read_says_why(cifar, tmp_path):
    (cifar / "data_batch_2.bin").write_bytes(b"short")
    report = check("cifar10", tmp_path)
    assert not report.readable and report.official is None
    assert str(cifar / "data_batch_2.bin") in report.remark and "vhl data get cifar10" in report.remark


def test_own_images_have_no_official_version(tmp_path):
    np.savez(tmp_path / "own.npz", images=np.zeros((20, 8, 8), np.uint8), labels=np.arange(20) % 2)
    report = check(f"npz:{tmp_path / 'own.npz'}", tmp_path)
    assert report.readable and report.official is None and (report.train, report.test) == (16, 4)


def test_a_folder_cannot_be_told_where_only_the_archive_is_known(tmp_path):
    from PIL import Image

    for number in ("n01443537", "n01629819"):
        folder = tmp_path / "tiny-imagenet-200" / "train" / number / "images"
        folder.mkdir(parents=True)
        for image in range(10):
            Image.new("RGB", (64, 64)).save(folder / f"{number}_{image}.JPEG")
    report = check("tiny-imagenet", tmp_path)
    assert report.readable and report.official is None and "tiny-imagenet-200.zip" in report.remark


def test_an_unknown_name_is_suggested(tmp_path):
    with pytest.raises(VHLError, match="cifar10"):
        check("cifar-10", tmp_path)


def test_the_listing_has_every_source_with_its_bytes(cifar, fmnist, tmp_path):
    listed = {entry.name: entry for entry in listing(tmp_path)}
    assert set(listed) == set(available("sources"))
    assert (listed["cifar10"].state, listed["cifar10"].size) == ("present", 13 * 3073)
    sizes = sum((tmp_path / file.path).stat().st_size for file in FMNIST.official)
    assert (listed["fmnist"].state, listed["fmnist"].size) == ("present", sizes)
    assert (listed["cifar100"].state, listed["cifar100"].size) == ("absent", 0)
    assert listed["digits"].state == "built in" and listed["folder"].state == "your own"
    assert all(entry.summary for entry in listed.values())


def test_an_empty_folder_counts_as_absent(tmp_path):
    (tmp_path / "fashion-mnist").mkdir()
    (tmp_path / "cifar-100-binary.tar.gz").write_bytes(b"x" * 7)
    listed = {entry.name: entry for entry in listing(tmp_path)}
    assert listed["fmnist"].state == "absent"
    assert (listed["cifar100"].state, listed["cifar100"].size) == ("present", 7)
