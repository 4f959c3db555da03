from __future__ import annotations

import pytest

from vhl.experiment import Experiment


@pytest.mark.parametrize(
    ("options", "batch"),
    [({}, 128), ({"images": "noise"}, 64), ({"batch_size": 7}, 7), ({"images": "noise", "batch_size": 9}, 9)],
)
def test_batches_are_feddfs_unless_set(options: dict[str, object], batch: int) -> None:
    settings = Experiment(algorithm={"name": "feddf", **options}).algorithm
    assert settings.batch == batch
    assert (settings.images is None) == ("images" not in options)


@pytest.mark.parametrize("images", ["dataset:digits", {"name": "stylegan", "width": 8}, None])
def test_any_images_and_back_from_a_file(images: object) -> None:
    experiment = Experiment(algorithm={"name": "feddf", "images": images})
    assert Experiment(**experiment.table()) == experiment
