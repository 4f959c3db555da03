"""Measuring and showing virtual sets."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import RidgeClassifier

from vhl.data.images import ImageSet
from vhl.data.sources.digits import Digits
from vhl.virtual import inspection
from vhl.virtual.inspection import picture, separability
from vhl.virtual.noise import Noise

SHAPE = (8, 8, 3)


def blobs(classes: list[int], distance: float, each: int = 200) -> ImageSet:
    """Classes that differ in the brightness of one pixel each, by ``distance`` levels, in noise of 10."""
    rng = np.random.default_rng(0)
    labels = np.repeat(classes, each)
    images = rng.normal(128, 10, (len(labels), 4, 4, 1))
    for place, label in enumerate(classes):
        images[labels == label, place // 4, place % 4, 0] += distance
    return ImageSet(np.clip(images, 0, 255).astype(np.uint8), labels)


def test_separable_classes_are_told_apart():
    assert separability(blobs([0, 1, 2, 3, 4], 100)) == 1.0
    assert separability(blobs([5, 9], 100)) == 1.0  # any label numbers


def test_less_distance_is_less_separable():
    accuracies = [separability(blobs([0, 1, 2, 3], distance)) for distance in (0, 15, 40)]
    assert accuracies[0] == pytest.approx(0.25, abs=0.1)
    assert accuracies[0] + 0.15 < accuracies[1] < accuracies[2] - 0.1


def test_shuffled_labels_are_at_chance():
    images = Noise().generate(10, 200, SHAPE, 0)
    shuffled = ImageSet(images.images, np.random.default_rng(1).permutation(images.labels))
    assert separability(images) > 0.99
    assert separability(shuffled) == pytest.approx(0.1, abs=0.05)


def test_probe_agrees_with_scikit_learn(tmp_path):
    digits = Digits(size=None).load(tmp_path).train
    flat = digits.images.reshape(len(digits), -1) / 255.0
    fitted = np.random.default_rng(5).random(len(digits)) < 0.75
    probe = RidgeClassifier(alpha=1.0).fit(flat[fitted], digits.labels[fitted])
    assert separability(digits) == pytest.approx(probe.score(flat[~fitted], digits.labels[~fitted]), abs=0.04)


def test_the_probe_looks_at_a_bounded_sample(monkeypatch):
    """Two pixels of sixteen cannot tell five classes of one pixel each apart, nor can eight images."""
    images = blobs([0, 1, 2, 3, 4], 100)
    monkeypatch.setattr(inspection, "_PROBE_PIXELS", 2)
    assert separability(images) < 0.7
    monkeypatch.setattr(inspection, "_PROBE_PIXELS", 16)
    monkeypatch.setattr(inspection, "_PROBE_IMAGES", 8)
    assert separability(images) * 2 % 1 == 0  # two images are left to test on


def test_picture_is_a_grid_of_enlarged_images():
    images = np.arange(3, dtype=np.uint8)[:, None, None, None] * 50 + np.zeros((3, 16, 32, 1), np.uint8)
    shown = np.asarray(picture(ImageSet(images, np.array([0, 4, 4])), per_class=2))
    assert shown.shape == (2 * 32 + 2, 2 * 64 + 2, 3)  # twice as large, gaps of 2
    assert (shown[:32, :64] == 0).all()
    assert (shown[34:, :64] == 50).all()
    assert (shown[34:, 66:] == 100).all()
    assert (shown[:32, 66:] == 255).all()  # class 0 has one image
    assert (shown[32:34] == 255).all() and (shown[:, 64:66] == 255).all()


def test_picture_shows_colours_and_leaves_large_images_alone():
    images = np.random.default_rng(0).integers(0, 256, (1, 70, 64, 3), np.uint8)
    np.testing.assert_array_equal(np.asarray(picture(ImageSet(images, np.array([0])), 1)), images[0])
