from __future__ import annotations

import hashlib

import numpy as np
import pytest

from vhl.data.images import Dataset, ImageSet
from vhl.data.sources._official import Fingerprint, OfficialFile


@pytest.fixture
def parts(rng):
    images = rng.integers(0, 256, (6, 4, 4, 3), dtype=np.uint8)
    return images, np.array([0, 1, 2, 0, 1, 2])


def fingerprint(images, labels, order=(0, 1, 2, 3), test_order=(4, 5)):
    train, test = list(order), list(test_order)
    return Fingerprint.of(
        Dataset(ImageSet(images[train], labels[train]), ImageSet(images[test], labels[test]), ("a", "b", "c"))
    )


def test_it_is_the_hash_of_pixels_and_labels(parts):
    images, labels = parts
    expected = hashlib.sha256(
        images[:4].tobytes() + b"".join(int(x).to_bytes(8, "little") for x in labels[:4])
    )
    assert fingerprint(images, labels).train == expected.hexdigest()


def test_the_order_of_training_images_counts_and_that_of_test_images_does_not(parts):
    assert fingerprint(*parts, order=(1, 0, 2, 3)).train != fingerprint(*parts).train
    assert fingerprint(*parts, test_order=(5, 4)) == fingerprint(*parts)


def test_memory_layout_does_not_count(parts):
    images, labels = parts
    strided = np.asfortranarray(images)
    assert fingerprint(strided, labels.astype(np.uint8)) == fingerprint(images, labels)


@pytest.mark.parametrize("sample", [0, 5])
def test_any_changed_pixel_or_label_counts(parts, sample):
    images, labels = parts
    part = "train" if sample < 4 else "test"
    good = getattr(fingerprint(images, labels), part)
    changed = images.copy()
    changed[sample, 3, 3, 2] ^= 1
    relabelled = labels.copy()
    relabelled[sample] ^= 1
    assert good != getattr(fingerprint(changed, labels), part)
    assert good != getattr(fingerprint(images, relabelled), part)


def test_swapped_labels_of_test_images_count(parts):
    images, labels = parts
    swapped = labels.copy()
    swapped[[4, 5]] = swapped[[5, 4]]
    assert fingerprint(images, swapped).test != fingerprint(images, labels).test


def test_an_official_file_is_known_by_its_hash(tmp_path):
    file = tmp_path / "file"
    official = OfficialFile("http://x", "file", hashlib.sha256(b"content").hexdigest())
    assert not official.is_at(file)
    file.write_bytes(b"content")
    assert official.is_at(file)
    file.write_bytes(b"Content")
    assert not official.is_at(file)
