from __future__ import annotations

import numpy as np
import pytest
import torch

from vhl.chance import Purpose, words
from vhl.data.images import ImageSet, ImageStream
from vhl.training.streams import Stream

CPU = torch.device("cpu")
MEAN, STD = np.array([0.2, 0.5, 0.7]), np.array([0.1, 0.25, 0.5])


@pytest.fixture
def images():
    rng = np.random.default_rng(0)
    return ImageSet(rng.integers(0, 256, (5, 6, 9, 3), np.uint8), rng.integers(0, 4, 5))


def choices(stream, count, seed=5):
    """How so many samples are augmented."""
    return stream.choices(words(seed, Purpose.NATURAL, 0, 0, 0, torch.arange(count)))


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
    stream = Stream(images, settings, (MEAN, STD), CPU, dtype=torch.float64)
    index = np.array([3, 0, 3, 4, 1, 2, 0, 1])
    chosen = choices(stream, len(index))
    wanted = {"row", "column"} if padding else set()
    wanted |= {"flip"} if flip else set()
    wanted |= {"hole_row", "hole_column"} if cutout else set()
    assert set(chosen) == wanted
    batch = stream.batch(torch.from_numpy(index), chosen)
    for n, image in enumerate(images.images[index]):
        own = {name: values[n].item() for name, values in chosen.items()}
        hole = (own["hole_row"], own["hole_column"]) if cutout else None
        reference = expected(
            image, own.get("row"), own.get("column"), own.get("flip", False), hole, padding, cutout
        )
        np.testing.assert_allclose(batch[n], reference, rtol=1e-13, atol=1e-14)


def test_choices_are_uniform_and_independent(images):
    """Shares of 40,000 lie within 5 standard deviations, at most 0.0125, of the truth."""
    stream = Stream(images, ImageStream(crop=1, flip=True, cutout=2), (MEAN, STD), CPU)
    chosen = choices(stream, 40_000)
    for name, places in {"row": 3, "column": 3, "flip": 2, "hole_row": 6, "hole_column": 9}.items():
        shares = chosen[name].long().bincount() / 40_000
        np.testing.assert_allclose(shares, np.full(places, 1 / places), atol=0.0125)
    together = torch.corrcoef(torch.stack([values.double() for values in chosen.values()]))
    np.testing.assert_allclose(together, np.eye(5), atol=0.025)


def test_a_shuffle_is_a_permutation_of_the_seed_the_round_and_the_purpose(images):
    many = ImageSet(np.repeat(images.images, 10, 0), np.repeat(images.labels, 10))
    stream = Stream(many, ImageStream(), (MEAN, STD), CPU)
    places = [(seed, purpose, round_) for seed in (0, 1) for purpose in Purpose for round_ in (0, 1)]
    orders = [tuple(stream.shuffled(*place).tolist()) for place in places]
    assert len(set(orders)) == len(places) and all(sorted(order) == list(range(50)) for order in orders)
    assert orders == [tuple(stream.shuffled(*place).tolist()) for place in places]


def test_padding_is_black_before_normalisation(images):
    stream = Stream(images, ImageStream(crop=2), (MEAN, STD), CPU)
    corner = {"row": torch.tensor([0]), "column": torch.tensor([4])}  # the upper right one
    (image,) = stream.batch(torch.tensor([1]), corner)
    black = torch.tensor(-MEAN / STD, dtype=torch.float32)
    assert image[:, :2].allclose(black[:, None, None])
    assert image[:, :, -2:].allclose(black[:, None, None])
    assert not image[:, 2:, :-2].allclose(black[:, None, None])


def test_unset_crop_pads_by_an_eighth_of_the_size():
    images = ImageSet(np.zeros((1, 17, 17, 1), np.uint8), np.zeros(1, np.int64))
    stream = Stream(images, ImageStream(), (np.zeros(1), np.ones(1)), CPU)
    assert choices(stream, 500)["row"].max() == 4  # 0 … 2 · ⌊17/8⌋
    corner = {name: torch.tensor([4]) for name in ("row", "column")}
    assert tuple(stream.batch(torch.tensor([0]), corner).shape) == (1, 1, 17, 17)


@pytest.mark.parametrize("made", [lambda *of: Stream(*of, augment=False), lambda *of: Stream(*of).plain()])
def test_no_augmentation_for_evaluation(images, made):
    stream = made(images, ImageStream(crop=2, flip=True, cutout=4), (MEAN, STD), CPU)
    assert choices(stream, 5) == {}
    batch = stream.batch(torch.arange(5), {})
    for n in range(5):
        np.testing.assert_allclose(batch[n], expected(images.images[n]), atol=2e-6)
    assert stream.labels.tolist() == images.labels.tolist() and len(stream) == 5


@pytest.mark.parametrize("augment", [True, False])
def test_batches_are_channels_last_in_memory(images, augment):
    stream = Stream(images, ImageStream(crop=2, cutout=2), (MEAN, STD), CPU, augment=augment)
    batch = stream.batch(torch.arange(4), choices(stream, 4))
    assert tuple(batch.shape) == (4, 3, 6, 9) and batch.dtype == torch.float32
    assert batch.is_contiguous(memory_format=torch.channels_last)
