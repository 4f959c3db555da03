from __future__ import annotations

from pathlib import Path

import numpy as np
import platformdirs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vhl.data.images import Dataset, ImageSet
from vhl.data.sources.base import Source, data_directory, resize, set_channels, split
from vhl.errors import VHLError


class _Fixed(Source):
    """Twenty 6×6 images of two classes for training, two for testing."""

    def read(self, data_dir: Path, seed: int) -> Dataset:
        pixels = np.arange(22 * 36, dtype=np.uint64).reshape(22, 6, 6, 1).astype(np.uint8)
        labels = np.arange(22) % 2
        return Dataset(ImageSet(pixels[:20], labels[:20]), ImageSet(pixels[20:], labels[20:]), ("a", "b"))


def test_the_given_directory_goes_before_the_environment_and_that_before_the_cache(monkeypatch):
    monkeypatch.setenv("VHL_DATA", "/from/environment")
    assert data_directory("/given") == Path("/given")
    assert data_directory() == Path("/from/environment")
    monkeypatch.delenv("VHL_DATA")
    assert data_directory() == platformdirs.user_cache_path("vhl")


@given(
    groups=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), min_size=24, max_size=60),
    share=st.sampled_from([0.25, 0.5]),
    seed=st.integers(0, 3),
)
def test_a_split_takes_its_share_of_every_class_at_every_site(groups, share, seed):
    labels, sites = np.array(groups).T
    whole = ImageSet(np.arange(len(labels), dtype=np.uint8)[:, None, None, None], labels, sites)
    kept, aside = split(whole, share, seed)
    assert sorted([*kept.images.ravel(), *aside.images.ravel()]) == list(range(len(labels)))
    for label, site in set(groups):
        members = groups.count((label, site))
        assert ((aside.labels == label) & (aside.sites == site)).sum() == round(share * members)


def test_a_split_depends_on_its_seed_alone():
    whole = ImageSet(np.arange(100, dtype=np.uint8)[:, None, None, None], np.zeros(100, np.int64))
    first, again, other = (split(whole, 0.5, seed)[1].images.ravel() for seed in (1, 1, 2))
    assert (first == again).all() and (first != other).any()


def test_a_split_that_leaves_nothing_to_train_on_is_refused(complains):
    whole = ImageSet(np.zeros((3, 4, 4, 1), np.uint8), np.arange(3))
    with complains("0.8", "3 images"):
        split(whole, 0.8, 0)
    assert [len(part) for part in split(whole, 0.2, 0)] == [3, 0]


def test_grey_is_repeated_and_colour_weighted_by_luma():
    grey = np.array([[[[9]]]], np.uint8)
    assert set_channels(grey, 3).tolist() == [[[[9, 9, 9]]]]
    primaries = np.array([[[[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]]]], np.uint8)
    assert set_channels(primaries, 1).ravel().tolist() == [76, 150, 29, 255]  # 255 × .299, .587, .114, 1
    assert set_channels(primaries, None) is primaries


def test_resizing_treats_channels_alike_and_keeps_flat_images_flat(rng):
    colour = rng.integers(0, 256, (3, 9, 9, 3), dtype=np.uint8)
    for channel in range(3):
        alone = resize(colour[..., channel : channel + 1], 5)
        assert (resize(colour, 5)[..., channel] == alone[..., 0]).all()
    assert (resize(np.full((1, 7, 3, 1), 77, np.uint8), 12) == np.full((1, 12, 12, 1), 77)).all()


def test_load_brings_all_parts_to_size_and_channels_and_splits_validation_off_training():
    plain = _Fixed().load(Path())
    assert plain.validation is None and plain.train.shape == (6, 6, 1)
    fitted = _Fixed(size=4, channels=3, validation=0.2).load(Path(), seed=3)
    assert fitted.train.shape == fitted.test.shape == fitted.validation.shape == (4, 4, 3)
    assert (len(fitted.train), len(fitted.validation), len(fitted.test)) == (16, 4, 2)
    assert np.bincount(fitted.validation.labels).tolist() == [2, 2]


@pytest.mark.parametrize("size", [None, 6])
def test_images_of_the_right_size_are_not_touched(size):
    assert (_Fixed(size=size).load(Path()).train.images == _Fixed().read(Path(), 0).train.images).all()


def test_labels_beyond_the_classes_are_refused(array_source, tmp_path: Path) -> None:
    images = ImageSet(np.zeros((3, 4, 4, 1), np.uint8), np.array([0, 1, 5]))
    with pytest.raises(VHLError, match="has labels from 0 to 5, but classes 0 to 1"):
        array_source(images, 2).load(tmp_path)
