from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from vhl.config.registry import build
from vhl.data.sources.base import Source
from vhl.data.sources.npz import Npz


@pytest.fixture
def arrays(rng):
    """Twenty images of two classes."""
    return {"images": rng.integers(0, 256, (20, 5, 6, 3), dtype=np.uint8), "labels": np.arange(20) % 2}


@pytest.fixture
def read(tmp_path):
    def save_and_read(arrays, seed=0, **options):
        np.savez(tmp_path / "own.npz", **arrays)
        return Npz(path=str(tmp_path / "own.npz"), **options).read(Path("/unused"), seed)

    return save_and_read


def test_images_without_a_test_part_are_split_by_share_and_seed(arrays, read):
    dataset = read(arrays)
    assert np.bincount(dataset.train.labels).tolist() == [8, 8] and np.bincount(
        dataset.test.labels
    ).tolist() == [2, 2]
    pairs = {image.tobytes(): label for image, label in zip(arrays["images"], arrays["labels"], strict=True)}
    for part in (dataset.train, dataset.test):
        assert all(
            pairs.pop(image.tobytes()) == label for image, label in zip(part.images, part.labels, strict=True)
        )
    assert not pairs and dataset.classes == ("0", "1") and dataset.sites == ()
    assert len(read(arrays, test_share=0.5).test) == 10
    assert (read(arrays, seed=1).test.images != dataset.test.images).any()


def test_a_test_part_is_taken_as_it_is(arrays, read, rng):
    test = {"test_images": rng.integers(0, 256, (3, 5, 6, 3), dtype=np.uint8), "test_labels": [1, 1, 0]}
    dataset = read(arrays | test | {"classes": ["no", "yes"]})
    assert (dataset.train.images == arrays["images"]).all() and (
        dataset.test.images == test["test_images"]
    ).all()
    assert dataset.test.labels.tolist() == [1, 1, 0] and dataset.classes == ("no", "yes")
    assert dataset.train.labels.dtype == dataset.test.labels.dtype == np.int64


def test_grey_images_need_no_channel(arrays, read):
    assert read(arrays | {"images": arrays["images"][..., 0]}).train.shape == (5, 6, 1)


@pytest.mark.parametrize(
    ("sites", "names"),
    [([10, 9] * 10, ("9", "10")), (["b", "a"] * 10, ("a", "b"))],
)
def test_sites_are_numbers_or_names(arrays, read, sites, names):
    test = {"test_images": arrays["images"], "test_labels": arrays["labels"]}
    dataset = read(arrays | test | {"sites": sites})
    assert dataset.sites == names and dataset.train.sites.tolist() == [1, 0] * 10
    assert dataset.test.sites is None
    assert np.bincount(read(arrays | {"sites": sites}).test.sites).tolist() == [2, 2]


def test_the_path_is_as_typed(arrays, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("own.npz", **arrays)
    assert len(build(Source, "source", "npz:own.npz").read(Path("/elsewhere"), 0).train) == 16


@pytest.mark.parametrize(
    ("changed", "texts"),
    [
        ({"images": None}, ["images is missing"]),
        ({"labels": None}, ["labels is missing"]),
        ({"images": np.zeros((20, 5, 6, 3))}, ["images must be uint8", "float64 (20, 5, 6, 3)"]),
        ({"images": np.zeros((20, 5, 6, 4), np.uint8)}, ["images must be", "(20, 5, 6, 4)"]),
        ({"images": np.zeros((20, 30), np.uint8)}, ["images must be", "(20, 30)"]),
        (
            {"images": np.zeros((0, 5, 6), np.uint8), "labels": np.zeros(0, int)},
            ["images must be", "(0, 5, 6)"],
        ),
        ({"labels": np.arange(19) % 2}, ["labels must be 20 whole numbers", "(19,)"]),
        ({"labels": np.zeros((20, 2), int)}, ["labels must be 20 whole numbers", "(20, 2)"]),
        ({"labels": np.linspace(0, 1, 20)}, ["labels must be 20 whole numbers", "float64"]),
        ({"labels": np.arange(20) % 2 - 1}, ["labels must count from 0", "-1"]),
        ({"labels": np.arange(20) % 2 + 1}, ["labels must run from 0", "no image has label 0"]),
        ({"labels": np.arange(20) % 2 * 10**15}, ["labels must run from 0", "no image has label 1"]),
        ({"classes": ["a"]}, ["classes must be 2 names", "(1,)"]),
        ({"classes": [["a", "b"]]}, ["classes must be 2 names", "(1, 2)"]),
        ({"classes": [1, 2]}, ["classes must be 2 names", "int64"]),
        ({"sites": np.zeros(20)}, ["sites must be 20 whole numbers or names", "float64"]),
        ({"sites": ["a"]}, ["sites must be 20", "(1,)"]),
        ({"test_labels": [0]}, ["test_images is missing"]),
        ({"test_images": np.zeros((1, 5, 6, 3), np.uint8)}, ["test_labels is missing"]),
        (
            {"test_images": np.zeros((1, 5, 5, 3), np.uint8), "test_labels": [0]},
            ["test_images must be of the shape"],
        ),
        ({"test_images": np.zeros((1, 5, 6, 3), np.uint8), "test_labels": [2]}, ["test_labels hold 2"]),
    ],
)
def test_what_is_wrong_is_said_with_file_and_key(arrays, read, changed, texts, complains):
    content = {key: value for key, value in (arrays | changed).items() if value is not None}
    with complains("own.npz: ", *texts):
        read(content)


def test_a_named_class_may_have_no_image(arrays, read):
    dataset = read(arrays | {"labels": np.arange(20) % 2 * 2, "classes": ["a", "b", "c"]})
    assert dataset.classes == ("a", "b", "c") and set(dataset.train.labels.tolist()) == {0, 2}
    assert read(arrays | {"classes": ["a", "b", "c"]}).classes == ("a", "b", "c")  # nor the last one


def test_one_class_is_enough_for_a_site_alone(arrays, tmp_path, complains):
    np.savez(tmp_path / "own.npz", **arrays | {"labels": np.zeros(20, int)})
    source = Npz(path=str(tmp_path / "own.npz"))
    assert len(source.load(tmp_path, whole=False).train) == 16
    with complains("one class only (0)"):
        source.load(tmp_path)


def test_objects_are_not_unpickled(arrays, read, tmp_path, complains):
    class Hostile:
        def __reduce__(self):
            return Path.mkdir, (tmp_path / "was-run",)

    with complains("own.npz is damaged", "allow_pickle=False"):
        read(arrays | {"labels": np.array([Hostile()] * 20, object)})
    (tmp_path / "own.npz").write_bytes(pickle.dumps(Hostile()))
    with complains("own.npz is damaged", "no complete .npz archive"):
        Npz(path=str(tmp_path / "own.npz")).read(Path(), 0)
    assert not (tmp_path / "was-run").exists()


def test_missing_and_damaged_files_are_named(arrays, read, tmp_path, complains):
    file = tmp_path / "own.npz"
    with complains(f"{file} is missing", "check the path"):
        Npz(path=str(file)).read(Path(), 0)
    read(arrays)
    good = file.read_bytes()
    flipped = bytearray(good)
    flipped[400] ^= 1
    for bad in (b"", good[:100], good[:-1], bytes(flipped)):
        file.write_bytes(bad)
        with complains(f"{file} is damaged", "np.savez"):
            Npz(path=str(file)).read(Path(), 0)
    np.save(tmp_path / "one.npy", arrays["images"])
    with complains("one.npy is damaged", "no complete .npz archive"):
        Npz(path=str(tmp_path / "one.npy")).read(Path(), 0)
