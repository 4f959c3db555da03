from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from scipy.io import savemat

from vhl.data.sources.svhn import SVHN

FILES = [file.path for file in SVHN.official]


@pytest.fixture
def parts(rng, tmp_path):
    """Eleven training and four test images; MATLAB's order is height, width, channel, number."""
    (tmp_path / "svhn").mkdir()
    parts = []
    for file, labels in zip(FILES, ([*range(1, 11), 10], [3, 10, 1, 9]), strict=True):
        images = rng.integers(0, 256, (32, 32, 3, len(labels)), dtype=np.uint8)
        savemat(tmp_path / file, {"X": images, "y": np.array(labels, np.uint8)[:, None]}, do_compression=True)
        parts.append(images)
    return parts


def test_images_come_out_upright_and_the_digit_zero_is_label_zero(parts, tmp_path):
    dataset = SVHN().read(tmp_path, seed=0)
    assert dataset.train.labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0]
    assert dataset.test.labels.tolist() == [3, 0, 1, 9]
    for found, official in zip((dataset.train, dataset.test), parts, strict=True):
        assert found.images.shape == (official.shape[3], 32, 32, 3) and found.images.dtype == np.uint8
        assert all((found.images[i] == official[:, :, :, i]).all() for i in range(len(found)))
    assert dataset.classes == tuple("0123456789")


def test_by_default_nothing_is_augmented_or_normalised(parts, tmp_path):
    source = SVHN()
    mean, std = source.statistics(source.load(tmp_path).train.images)
    assert (mean.tolist(), std.tolist()) == ([0, 0, 0], [1, 1, 1])
    assert (source.padding(32), source.flip, source.cutout) == (0, False, 0)


@pytest.mark.parametrize("file", FILES)
def test_missing_and_truncated_files_are_named(parts, tmp_path, file, complains):
    raw = (tmp_path / file).read_bytes()
    for keep in (0, 50, 127, 130, 200, len(raw) // 2, -1):
        (tmp_path / file).write_bytes(raw[:keep])
        with complains(f"{tmp_path / file} is damaged", "vhl data get svhn"):
            SVHN().read(tmp_path, seed=0)
    (tmp_path / file).unlink()
    with complains(f"{tmp_path / file} is missing", "vhl data get svhn"):
        SVHN().read(tmp_path, seed=0)


def test_a_file_of_noise_is_damaged(parts, tmp_path, rng, complains):
    """MATLAB's reader must survive any bytes, with or without a valid header."""
    file = tmp_path / FILES[0]
    good = io.BytesIO()
    savemat(good, {"X": parts[0], "y": np.ones((11, 1), np.uint8)})
    for trial in range(60):
        raw = bytearray(good.getvalue()[: 128 * (trial % 2)] + rng.bytes(600))
        file.write_bytes(raw)
        with complains(f"{file} is damaged", "vhl data get svhn"):
            SVHN().read(tmp_path, seed=0)


def test_a_header_that_promises_too_much_is_damaged(parts, tmp_path, complains):
    file = tmp_path / FILES[0]
    good = io.BytesIO()
    savemat(good, {"X": parts[0], "y": np.ones((11, 1), np.uint8)})
    raw = bytearray(good.getvalue())
    where = raw.index(struct.pack("<4i", 32, 32, 3, 11))
    raw[where : where + 16] = struct.pack("<4i", 32, 32, 3, 2**30)
    file.write_bytes(raw)
    with complains(f"{file} is damaged", "vhl data get svhn"):
        SVHN().read(tmp_path, seed=0)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"y": np.ones((2, 1), np.uint8)}, "no array X"),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8)}, "no array y"),
        ({"X": np.zeros((32, 32, 3, 2)), "y": np.ones((2, 1), np.uint8)}, "8-bit colour"),
        ({"X": np.zeros((32, 32, 1, 2), np.uint8), "y": np.ones((2, 1), np.uint8)}, "8-bit colour"),
        (
            {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones((3, 1), np.uint8)},
            "label for each of 2 images",
        ),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1], [11]], np.uint8)}, "label 11"),
        ({"X": np.array([["a", 1]], object), "y": np.ones((2, 1), np.uint8)}, "no array X"),
    ],
)
def test_what_is_not_images_with_labels_is_damaged(parts, tmp_path, complains, content, reason):
    savemat(tmp_path / FILES[1], content)
    with complains(f"{tmp_path / FILES[1]} is damaged", reason, "vhl data get svhn"):
        SVHN().read(tmp_path, seed=0)
