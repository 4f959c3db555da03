from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from vhl.data.images import ImageSet, ImageStream
from vhl.errors import VHLError


def _images(count: int = 5, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 6, 4, channels), dtype=np.uint8)


@given(seed=st.integers(0, 99), channels=st.sampled_from([1, 3]), count=st.integers(1, 9))
def test_unset_statistics_are_those_of_the_images(seed, channels, count):
    images = np.random.default_rng(seed).integers(0, 256, (count, 3, 2, channels), dtype=np.uint8)
    mean, std = ImageStream().statistics(images)
    scaled = images.astype(np.float64) / 255
    np.testing.assert_allclose(mean, scaled.mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(std, scaled.std((0, 1, 2)), rtol=1e-9)


def test_statistics_take_every_image_of_a_large_set():
    images = np.zeros((2_500, 1, 1, 1), np.uint8)
    images[-1] = 255
    mean, std = ImageStream().statistics(images)
    assert mean[0] == pytest.approx(1 / 2_500)
    assert std[0] == pytest.approx(np.sqrt(1 / 2_500 - 1 / 2_500**2))


def test_a_constant_channel_does_not_divide_by_zero():
    images = _images()
    images[..., 1] = 51
    mean, std = ImageStream().statistics(images)
    assert mean[1] == pytest.approx(0.2)
    assert std[1] == 1e-6 and (std[[0, 2]] > 0.1).all()


def test_statistics_that_are_set_are_used_and_the_others_measured():
    images = _images()
    scaled = images / 255
    mean, std = ImageStream(mean=(0.1, 0.2, 0.3)).statistics(images)
    assert mean.tolist() == [0.1, 0.2, 0.3]
    np.testing.assert_allclose(std, scaled.std((0, 1, 2)))
    mean, std = ImageStream(std=(0.5,)).statistics(images)
    np.testing.assert_allclose(mean, scaled.mean((0, 1, 2)))
    assert std.tolist() == [0.5, 0.5, 0.5]
    mean, std = ImageStream(mean=(0.4,), std=(1, 2, 3)).statistics(images)
    assert (mean.tolist(), std.tolist()) == ([0.4] * 3, [1, 2, 3])


@pytest.mark.parametrize("values", [(), (0.5, 0.5), (0.5,) * 4])
@pytest.mark.parametrize("key", ["mean", "std"])
def test_statistics_of_another_number_of_channels_are_refused(key, values):
    stream = ImageStream(**{key: values})
    with pytest.raises(
        VHLError, match=f"{key} of .* has {len(values)} values, but the images have 3 channels"
    ):
        stream.statistics(_images())


@pytest.mark.parametrize("std", [(0.0,), (0.2, -0.1, 0.2)])
def test_deviations_that_cannot_divide_are_refused(std):
    with pytest.raises(ValidationError, match="above 0"):
        ImageStream(std=std)


@pytest.mark.parametrize(
    ("crop", "size", "padding"), [(None, 32, 4), (None, 28, 3), (None, 7, 0), (0, 32, 0), (6, 8, 6)]
)
def test_padding_is_an_eighth_of_the_size_unless_set(crop, size, padding):
    assert ImageStream(crop=crop).padding(size) == padding


def test_a_set_gives_its_shape_and_parts_of_it():
    whole = ImageSet(_images(), np.array([3, 1, 2, 0, 1]), np.array([0, 0, 1, 1, 2]))
    assert len(whole) == 5 and whole.shape == (6, 4, 3)
    part = whole.take(np.array([4, 2]))
    assert (part.images == whole.images[[4, 2]]).all()
    assert (part.labels.tolist(), part.sites.tolist()) == ([1, 2], [2, 1])
    assert ImageSet(whole.images, whole.labels).take(np.array([0])).sites is None


@pytest.mark.parametrize(
    ("images", "labels", "wrong"),
    [
        (_images() / 255, np.zeros(5, int), r"not float64 of \(5, 6, 4, 3\)"),
        (_images()[..., 0], np.zeros(5, int), r"not uint8 of \(5, 6, 4\)"),
        (_images(), np.zeros(4, int), r"Labels must be 5 whole numbers, .* not int64 of shape \(4,\)"),
        (_images(), np.zeros(5), "not float64 of shape"),
        (_images(), np.zeros((5, 1), int), r"of shape \(5, 1\)"),
    ],
)
def test_arrays_that_are_no_labelled_images_are_refused(images, labels, wrong):
    with pytest.raises(VHLError, match=wrong):
        ImageSet(images, labels)


def test_labels_must_name_a_class():
    images = ImageSet(_images(), np.array([0, 1, 2, 1, 0]))
    images.check_labels(3, "mine")
    with pytest.raises(VHLError, match="mine has labels from 0 to 2, but classes 0 to 1"):
        images.check_labels(2, "mine")
    with pytest.raises(VHLError, match="from -1 to 1"):
        ImageSet(_images(2), np.array([-1, 1])).check_labels(2, "mine")
    ImageSet(_images(0), np.zeros(0, int)).check_labels(2, "mine")
