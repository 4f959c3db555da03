from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from scipy.io import savemat

from official_forms import COLOUR, write


def test_a_file_of_noise_is_damaged(rng, tmp_path, complains):
    """MATLAB's reader must survive any bytes, with or without a valid header."""
    written, good = write("svhn", tmp_path), io.BytesIO()
    savemat(good, {"X": COLOUR.transpose(1, 2, 3, 0), "y": np.ones((13, 1), np.uint8)})
    for trial in range(60):
        written.files[0].write_bytes(bytearray(good.getvalue()[: 128 * (trial % 2)] + rng.bytes(600)))
        with complains(f"{written.files[0]} is damaged", "vhl data get svhn"):
            written.read()


def test_a_header_that_promises_too_much_is_damaged(tmp_path, complains):
    written, good = write("svhn", tmp_path), io.BytesIO()
    savemat(good, {"X": COLOUR.transpose(1, 2, 3, 0), "y": np.ones((13, 1), np.uint8)})
    promises = good.getvalue().replace(
        struct.pack("<4i", 32, 32, 3, 13), struct.pack("<4i", 32, 32, 3, 2**30)
    )
    assert promises != good.getvalue()
    written.files[0].write_bytes(promises)
    with complains(f"{written.files[0]} is damaged", "vhl data get svhn"):
        written.read()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"y": np.ones((2, 1), np.uint8)}, "no array X"),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8)}, "no array y"),
        ({"X": np.zeros((32, 32, 3, 2)), "y": np.ones((2, 1), np.uint8)}, "8-bit colour"),
        ({"X": np.zeros((32, 32, 1, 2), np.uint8), "y": np.ones((2, 1), np.uint8)}, "8-bit colour"),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones((3, 1), np.uint8)}, "label for each of 2"),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1], [11]], np.uint8)}, "label 11"),
        ({"X": np.array([["a", 1]], object), "y": np.ones((2, 1), np.uint8)}, "no array X"),
    ],
)
def test_what_is_not_images_with_labels_is_damaged(content, reason, tmp_path, complains):
    written = write("svhn", tmp_path)
    savemat(written.files[1], content)
    with complains(f"{written.files[1]} is damaged", reason, "vhl data get svhn"):
        written.read()
