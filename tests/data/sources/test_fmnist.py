from __future__ import annotations

import gzip

import numpy as np
import pytest

from official_forms import GREY, LABELS, idx, write
from vhl.data.sources.fmnist import FMNIST

GOOD = gzip.decompress(idx(GREY[:10, ..., 0]))


def test_by_default_they_are_32_pixels_of_three_equal_channels(tmp_path):
    write("fmnist", tmp_path)
    images = FMNIST().load(tmp_path).train.images
    assert images.shape == (10, 32, 32, 3) and (images == images[..., :1]).all()
    assert FMNIST(size=None, channels=None).load(tmp_path).train.shape == (28, 28, 1)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (GOOD + b"\0", "its header promises 7840 bytes"),
        (GOOD[:-1], "its header promises 7840 bytes"),
        (GOOD[:8], "its header is cut off"),
        (GOOD[:9], ""),
        (GOOD[:4] + b"\0" * 12, "empty"),
        (GOOD[:4] + b"\xff" * 12 + GOOD[16:], ""),
        (b"\0\0\x08\x01" + GOOD[4:], "does not start as an IDX file"),
    ],
)
def test_what_is_no_file_of_images_is_damaged(raw, reason, tmp_path, complains):
    written = write("fmnist", tmp_path)
    written.files[0].write_bytes(gzip.compress(raw))
    with complains(f"{written.files[0]} is damaged", reason, "vhl data get fmnist"):
        written.read()


@pytest.mark.parametrize(
    ("labels", "reason"),
    [([*LABELS[:9], 10], "label 10 is not between 0 and 9"), (LABELS[:5], "label for each of 10 images")],
)
def test_labels_that_do_not_fit_are_damaged(labels, reason, tmp_path, complains):
    written = write("fmnist", tmp_path)
    written.files[1].write_bytes(idx(np.array(labels)))
    with complains(f"{written.files[1]} is damaged", reason, "vhl data get fmnist"):
        written.read()
