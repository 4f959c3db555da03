from __future__ import annotations

import gzip

import numpy as np
import pytest

from vhl.data.sources.fmnist import FMNIST

FILES = [file.path for file in FMNIST.official]


@pytest.fixture
def parts(rng, tmp_path, write_idx):
    """Six training and three test images in the official files."""
    parts = {}
    for name, count in (("train", 6), ("t10k", 3)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, count)
        write_idx(tmp_path / f"fashion-mnist/{name}-images-idx3-ubyte.gz", images)
        write_idx(tmp_path / f"fashion-mnist/{name}-labels-idx1-ubyte.gz", labels)
        parts[name] = images, labels
    return parts


def test_the_images_and_labels_of_the_files_come_out(parts, tmp_path):
    dataset = FMNIST().read(tmp_path, seed=0)
    for found, name in ((dataset.train, "train"), (dataset.test, "t10k")):
        images, labels = parts[name]
        assert (found.images[..., 0] == images).all() and (found.labels == labels).all()
        assert found.images.dtype == np.uint8 and found.labels.dtype == np.int64
    assert dataset.classes[9] == "Ankle boot" and len(dataset.classes) == 10


def test_by_default_they_are_32_pixels_of_three_equal_channels_and_not_normalised(parts, tmp_path):
    source = FMNIST()
    images = source.load(tmp_path).train.images
    assert images.shape == (6, 32, 32, 3) and (images == images[..., :1]).all()
    mean, std = source.statistics(images)
    assert (mean.tolist(), std.tolist()) == ([0, 0, 0], [1, 1, 1])
    assert (source.padding(32), source.flip, source.cutout) == (0, False, 0)


def test_without_a_size_the_pixels_are_kept_and_can_be_written_to(parts, tmp_path):
    images = FMNIST(size=None, channels=None).load(tmp_path).train.images
    assert images.shape == (6, 28, 28, 1) and images.flags.writeable


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_named_with_the_command_that_fetches_it(
    parts, tmp_path, file, complains, monkeypatch
):
    (tmp_path / file).unlink()
    with complains(f"{tmp_path / file} is missing", f"vhl data get fmnist --data-dir {tmp_path}"):
        FMNIST().read(tmp_path, seed=0)
    monkeypatch.setenv("VHL_DATA", str(tmp_path))
    with complains("run `vhl data get fmnist`."):
        FMNIST().read(tmp_path, seed=0)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("keep", [0, 5, 30, -9, -1])
def test_a_truncated_file_is_damaged(parts, tmp_path, file, keep, complains):
    (tmp_path / file).write_bytes((tmp_path / file).read_bytes()[:keep])
    with complains(f"{tmp_path / file} is damaged", "vhl data get fmnist"):
        FMNIST().read(tmp_path, seed=0)


@pytest.mark.parametrize("file", FILES)
def test_a_changed_byte_is_noticed(parts, tmp_path, file, complains):
    raw = bytearray((tmp_path / file).read_bytes())
    raw[-6] ^= 1  # in the checksum that ends a gzip file
    (tmp_path / file).write_bytes(raw)
    with complains(f"{tmp_path / file} is damaged", "vhl data get fmnist"):
        FMNIST().read(tmp_path, seed=0)


def test_files_that_are_no_idx_files_of_the_right_kind_are_damaged(parts, tmp_path, complains, write_idx):
    images, labels = (
        tmp_path / f"fashion-mnist/train-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")
    )
    good = gzip.decompress(images.read_bytes())
    for bad in (
        good + b"\0",
        good[:-1],
        good[:9],
        good[:4] + b"\0" * 12,
        good[:4] + b"\xff" * 12 + good[16:],
    ):
        images.write_bytes(gzip.compress(bad))
        with complains(f"{images} is damaged", "vhl data get fmnist"):
            FMNIST().read(tmp_path, seed=0)
    write_idx(images, parts["train"][0], magic=b"\0\0\x08\x01")
    with complains(f"{images} is damaged", "does not start as an IDX file"):
        FMNIST().read(tmp_path, seed=0)
    images.write_bytes(gzip.compress(good))
    write_idx(labels, np.array([0, 1, 2, 3, 4, 10]))
    with complains(f"{labels} is damaged", "label 10 is not between 0 and 9"):
        FMNIST().read(tmp_path, seed=0)
    write_idx(labels, np.arange(5))
    with complains(f"{labels} is damaged", "label for each of 6 images"):
        FMNIST().read(tmp_path, seed=0)


def test_a_folder_in_the_place_of_a_file_cannot_be_read(parts, tmp_path, complains):
    (tmp_path / FILES[0]).unlink()
    (tmp_path / FILES[0]).mkdir()
    with complains(f"{tmp_path / FILES[0]} cannot be read (Is a directory)"):
        FMNIST().read(tmp_path, seed=0)
