from __future__ import annotations

import numpy as np
import pytest
import torch
from vhl.training.stream import Stream

from vhl.data.images import ImageSet, ImageStream

CPU = torch.device("cpu")
MEAN, STD = np.array([0.2, 0.5, 0.7]), np.array([0.1, 0.25, 0.5])


@pytest.fixture
def images():
    rng = np.random.default_rng(0)
    return ImageSet(rng.integers(0, 256, (5, 6, 9, 3), np.uint8), rng.integers(0, 4, 5))


def expected(image, row=None, column=None, flip=False, hole=None, padding=0, cutout=0):
    """Pad with black, crop, flip, normalise, blank: one image (C, H, W) in float64."""
    height, width, _ = image.shape
    if padding:
        padded = np.zeros((height + 2 * padding, width + 2 * padding, 3))
        padded[padding : padding + height, padding : padding + width] = image
        image = padded[row : row + height, column : column + width]
    if flip:
        image = image[:, ::-1]
    pixels = (image / 255 - MEAN) / STD
    if cutout:
        pixels = pixels.copy()
        top, left = hole[0] - cutout // 2, hole[1] - cutout // 2
        pixels[max(top, 0) : top + cutout, max(left, 0) : left + cutout] = 0
    return pixels.transpose(2, 0, 1)


@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("cutout", [0, 3, 4])
def test_batches_equal_an_independent_augmentation(images, padding, flip, cutout):
    settings = ImageStream(crop=padding, flip=flip, cutout=cutout)
    stream = Stream(images, settings, (MEAN, STD), CPU)
    index = np.array([3, 0, 3, 4, 1, 2, 0, 1])
    chance = stream.draw(np.random.default_rng(5), index.shape)
    wanted = {"row", "column"} if padding else set()
    wanted |= {"flip"} if flip else set()
    wanted |= {"hole_row", "hole_column"} if cutout else set()
    assert set(chance) == wanted
    batch = stream.batch(torch.from_numpy(index), {k: torch.from_numpy(v) for k, v in chance.items()})
    for n, image in enumerate(images.images[index]):
        row, column = (chance["row"][n], chance["column"][n]) if padding else (None, None)
        hole = (chance["hole_row"][n], chance["hole_column"][n]) if cutout else None
        flipped = bool(flip and chance["flip"][n])
        reference = expected(image, row, column, flipped, hole, padding, cutout)
        np.testing.assert_allclose(batch[n], reference, atol=2e-6)


def test_chances_are_uniform_over_all_places(images):
    stream = Stream(images, ImageStream(crop=1, flip=True, cutout=2), (MEAN, STD), CPU)
    chance = stream.draw(np.random.default_rng(0), (100, 40))
    assert all(values.shape == (100, 40) for values in chance.values())
    # shares of 4,000 draws lie within 5 standard deviations (at most 0.04) of the truth
    for name, places in {"row": 3, "column": 3, "hole_row": 6, "hole_column": 9}.items():
        shares = np.bincount(chance[name].ravel()) / 4000
        np.testing.assert_allclose(shares, np.full(places, 1 / places), atol=0.04)
    assert chance["flip"].mean() == pytest.approx(0.5, abs=0.04)


def test_same_chance_for_the_same_generator(images):
    stream = Stream(images, ImageStream(crop=2, flip=True, cutout=2), (MEAN, STD), CPU)
    one, other = (stream.draw(np.random.default_rng(9), (3, 4)) for _ in range(2))
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_padding_is_black_before_normalisation(images):
    stream = Stream(images, ImageStream(crop=2), (MEAN, STD), CPU)
    chance = {"row": torch.tensor([0]), "column": torch.tensor([4])}  # the upper right corner
    (image,) = stream.batch(torch.tensor([1]), chance)
    black = torch.tensor(-MEAN / STD, dtype=torch.float32)
    assert image[:, :2].allclose(black[:, None, None])
    assert image[:, :, -2:].allclose(black[:, None, None])
    assert not image[:, 2:, :-2].allclose(black[:, None, None])


def test_unset_crop_pads_by_an_eighth_of_the_size():
    images = ImageSet(np.zeros((1, 17, 17, 1), np.uint8), np.zeros(1, np.int64))
    stream = Stream(images, ImageStream(), (np.zeros(1), np.ones(1)), CPU)
    assert stream.draw(np.random.default_rng(0), (500,))["row"].max() == 4  # 0 … 2 · ⌊17/8⌋
    assert tuple(
        stream.batch(torch.tensor([0]), {k: torch.tensor([4]) for k in ("row", "column")}).shape
    ) == (
        1,
        1,
        17,
        17,
    )


def test_no_augmentation_for_evaluation(images):
    settings = ImageStream(crop=2, flip=True, cutout=4)
    stream = Stream(images, settings, (MEAN, STD), CPU, augment=False)
    assert stream.draw(np.random.default_rng(0), (5,)) == {}
    batch = stream.batch(torch.arange(5), {})
    for n in range(5):
        np.testing.assert_allclose(batch[n], expected(images.images[n]), atol=2e-6)
    assert stream.labels.tolist() == images.labels.tolist() and len(stream) == 5


@pytest.mark.parametrize("augment", [True, False])
def test_batches_are_channels_last_in_memory(images, augment):
    stream = Stream(images, ImageStream(crop=2, cutout=2), (MEAN, STD), CPU, augment=augment)
    chance = {name: torch.from_numpy(v) for name, v in stream.draw(np.random.default_rng(0), (4,)).items()}
    batch = stream.batch(torch.arange(4), chance)
    assert tuple(batch.shape) == (4, 3, 6, 9) and batch.dtype == torch.float32
    assert batch.is_contiguous(memory_format=torch.channels_last)
