"""A labelled dataset as virtual data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vhl.config.registry import build
from vhl.data.images import ImageSet
from vhl.data.sources.digits import Digits
from vhl.errors import VHLError
from vhl.virtual.base import Generator, Workplace
from vhl.virtual.dataset import LabelledDataset
from vhl.virtual.sets import virtual_set


@pytest.fixture
def digits(tmp_path: Path) -> ImageSet:
    return Digits(size=None).load(tmp_path).train


def sorted_rows(images: np.ndarray) -> list[bytes]:
    return sorted(image.tobytes() for image in images)


def test_all_training_images_of_the_first_classes(digits, tmp_path):
    generator = LabelledDataset(source=Digits(size=None))
    made = virtual_set(generator, 4, (8, 8, 1), 0, tmp_path)
    assert made.labels.tolist() == sorted(digits.labels[digits.labels < 4].tolist())
    for label in range(4):
        ours, theirs = made.images[made.labels == label], digits.images[digits.labels == label]
        assert sorted_rows(ours) == sorted_rows(theirs)


def test_at_most_per_class_images_chosen_by_the_seed(digits, tmp_path):
    generator = LabelledDataset(source=Digits(size=None), per_class=5)
    first, again, other = (virtual_set(generator, 10, (8, 8, 1), seed, tmp_path) for seed in (0, 0, 1))
    assert np.bincount(first.labels).tolist() == [5] * 10
    assert set(sorted_rows(first.images)) <= set(sorted_rows(digits.images))
    assert first.images.tobytes() == again.images.tobytes() != other.images.tobytes()


def test_a_class_with_fewer_images_gives_what_it_has(digits, tmp_path):
    largest = int(np.bincount(digits.labels).max())
    made = virtual_set(LabelledDataset(source=Digits(), per_class=largest - 1), 10, (8, 8, 1), 0, tmp_path)
    np.testing.assert_array_equal(
        np.bincount(made.labels), np.minimum(np.bincount(digits.labels), largest - 1)
    )


def test_resized_and_given_the_channels_asked_for(digits, tmp_path):
    made = virtual_set(LabelledDataset(source=Digits(size=None)), 1, (20, 12, 3), 0, tmp_path)
    assert made.shape == (20, 12, 3)
    assert (made.images == made.images[..., :1]).all()
    expected = [
        np.asarray(Image.fromarray(image[..., 0]).resize((12, 20), Image.Resampling.BILINEAR)).astype(int)
        for image in digits.images[digits.labels == 0]
    ]
    ours = made.images[..., 0].astype(int)
    assert all(min(np.abs(one - other).max() for other in expected) <= 1 for one in ours)


def test_too_few_classes_is_one_sentence(tmp_path):
    with pytest.raises(
        VHLError, match=r"digits has 10 classes, fewer than the 11 .* virtual\.classes = 10\."
    ):
        virtual_set(LabelledDataset(source=Digits()), 11, (8, 8, 1), 0, tmp_path)


@pytest.mark.parametrize("given", ["dataset:digits", {"name": "dataset", "source": {"name": "digits"}}])
def test_named_in_an_experiment(given):
    assert build(Generator, "virtual", given) == LabelledDataset(source=Digits())


def test_options_of_the_nested_source_survive_a_round_trip():
    generator = build(Generator, "virtual", {"name": "dataset", "source": {"name": "digits", "size": 12}})
    assert build(Generator, "virtual", generator.model_dump(mode="json")) == generator
    assert generator.model_dump()["source"]["size"] == 12


def test_an_unknown_source_is_named():
    with pytest.raises(VHLError, match="did you mean 'digits'"):
        build(Generator, "virtual", "dataset:digit")


def test_not_kept_a_second_time(tmp_path):
    virtual_set(LabelledDataset(source=Digits()), 2, (8, 8, 1), 0, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_how_many_classes_there_are(tmp_path):
    assert LabelledDataset(source=Digits()).known_classes(0) == 10
    assert build(Generator, "virtual", "noise").known_classes(0) is None


def test_held_out_images_are_its_test_images(tmp_path):
    generator = LabelledDataset(source=Digits())
    test = generator.source.load(tmp_path).test
    held_out = generator.held_out(10, 10_000, test.shape, 0, Workplace(data_dir=tmp_path))
    assert len(held_out) == len(test) and sorted_rows(held_out.images) == sorted_rows(test.images)
