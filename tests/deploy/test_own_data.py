from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from vhl.deploy.own_data import describe, read_data


@pytest.fixture(params=["folder", "npz"])
def write(
    request: pytest.FixtureRequest, tmp_path: Path, npz: Callable[..., str], pictures: Callable[..., str]
) -> Callable[..., str]:
    """So many images of each class, in one form or the other."""

    def images(counts: dict[str, int]) -> str:
        if request.param == "folder":
            return pictures(tmp_path / "images", counts)
        labels = np.repeat(np.arange(len(counts)), list(counts.values()))
        return npz(tmp_path / "images.npz", list(labels), classes=np.array(list(counts)))

    return images


def test_npz_images_get_the_experiments_size(node, npz, plain, tmp_path):
    facts = describe(node(data=npz(tmp_path / "a.npz", [0] * 10 + [1] * 5, size=20)), plain)
    assert facts.shape == [8, 8, 1] and facts.train == [8, 4] and facts.test == [2, 1]


def test_a_folder_keeps_its_own_size_where_the_experiment_sets_none(node, pictures, plain, tmp_path):
    """As with CIFAR-10, whose images have a size of their own."""
    given = node(data=pictures(tmp_path / "a", {"a": 10, "b": 10}, size=20))
    assert describe(given, plain.with_(data={"name": "npz", "path": "-"})).shape == [32, 32, 1]


def test_the_experiments_test_share_holds(node, write, plain):
    data = {"name": "folder", "path": "elsewhere", "test_share": 0.5, "size": 8}
    facts = describe(node(data=write({"a": 10, "b": 6})), plain.with_(data=data))
    assert (facts.train, facts.test, facts.shape) == ([5, 3], [5, 3], [8, 8, 1])


def test_the_experiments_validation_share_and_channels_hold(node, pictures, plain, tmp_path):
    data = {"name": "digits", "size": 8, "validation": 0.25, "channels": 3}
    given = node(data=pictures(tmp_path / "a", {"a": 10, "b": 20}))
    facts = describe(given, plain.with_(data=data))
    assert (facts.train, facts.validation, facts.test) == ([6, 12], [2, 4], [2, 4])
    assert facts.shape == [8, 8, 3]


def test_a_site_may_have_one_class_only(node, write, plain):
    """The common case of data that are not alike: a clinic for one illness."""
    assert describe(node(data=write({"eel": 10})), plain).train == [8]


def test_a_site_may_have_too_few_images_to_hold_any_out(node, write, plain):
    """Its images are too dear to be refused; others test."""
    facts = describe(node(data=write({"cat": 1, "dog": 2})), plain.with_(data={"validation": 0.2}))
    assert (facts.train, facts.test, facts.validation) == ([1, 2], [0, 0], [0, 0])


def test_parts_are_the_experiments_own_clients(node, plain, tmp_path, complains):
    held = plain.with_(data={"name": "digits", "validation": 0.1})
    dataset = held.data.load(tmp_path, 0)
    parts = held.partition.assign(dataset, 0)
    own = [read_data(node(f"s{i}", f"part:{i}"), held) for i in range(3)]
    for mine, part in zip(own, parts, strict=True):
        assert (mine.train.images == dataset.train.images[part]).all()
        assert (mine.train.labels == dataset.train.labels[part]).all()
    assert sum(len(mine.test) for mine in own) == len(dataset.test)
    assert dataset.validation is not None
    assert sum(len(mine.validation or ()) for mine in own) == len(dataset.validation)
    with complains("part:3", "3 parts"):
        read_data(node("s3", "part:3"), held)


@pytest.mark.parametrize(
    ("mean", "std", "said"), [(None, None, True), ([0.5], None, True), ([0.5], [1], False)]
)
def test_pixels_are_summed_only_where_the_experiment_leaves_something_open(node, plain, mean, std, said):
    facts = describe(node(), plain.with_(data={"mean": mean, "std": std}))
    assert (sum(facts.sums) > 0) == (sum(facts.squares) > 0) == said
