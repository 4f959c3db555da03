from __future__ import annotations

import pytest

from vhl.algorithms.fedavg import FedAvg
from vhl.experiment import Experiment


@pytest.mark.parametrize(
    ("options", "batch"),
    [({}, 128), ({"images": "noise"}, 64), ({"batch_size": 7}, 7), ({"images": "noise", "batch_size": 9}, 9)],
)
def test_batches_are_feddfs_unless_set(options: dict[str, object], batch: int) -> None:
    settings = Experiment(algorithm={"name": "feddf", **options}).algorithm.distillation
    assert settings is not None and settings.batch == batch
    assert (settings.images is None) == ("images" not in options)


def test_options_reach_the_stage() -> None:
    options = {"steps": 50, "lr": 0.1, "clip": 2.0, "check_every": 5, "patience": 20, "keep_average": True}
    settings = Experiment(algorithm={"name": "feddf", **options}).algorithm.distillation
    assert {name: getattr(settings, name) for name in options} == options


@pytest.mark.parametrize("images", ["dataset:digits", {"name": "stylegan", "width": 8}, None])
def test_any_images_and_back_from_a_file(images: object) -> None:
    experiment = Experiment(algorithm={"name": "feddf", "images": images})
    assert Experiment(**experiment.table()) == experiment


def test_others_do_not_distil() -> None:
    assert FedAvg().distillation is None
