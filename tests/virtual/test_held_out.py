"""Held-out images: of the same classes, but drawn anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vhl.config.registry import build
from vhl.virtual.base import Generator, Workplace

SHAPE = (8, 8, 1)
DRAWN = ["noise", {"name": "stylegan", "width": 8}, "decoder"]


@pytest.mark.parametrize("generator", DRAWN, ids=["noise", "stylegan", "decoder"])
def test_classes_are_the_same_and_samples_are_others(generator: Any) -> None:
    made: Any = build(Generator, "virtual", generator)
    train, held_out = made.generate(3, 60, SHAPE, 4), made.held_out(3, 60, SHAPE, 4)
    assert held_out.labels.tolist() == train.labels.tolist()
    flat, fresh = train.images.reshape(180, -1).astype(float), held_out.images.reshape(180, -1).astype(float)
    assert not any((flat == row).all(1).any() for row in fresh)
    means, others = (np.stack([x[train.labels == c].mean(0) for c in range(3)]) for x in (flat, fresh))
    distances = np.linalg.norm(means[:, None] - others[None], axis=2)
    assert (distances.argmin(1) == np.arange(3)).all()  # each class's mean is nearest to its own again
    assert np.diag(distances).max() < 0.5 * distances[~np.eye(3, dtype=bool)].min()
    assert (made.held_out(3, 60, SHAPE, 4).images == held_out.images).all()


def test_of_a_dataset_they_are_its_test_images(tmp_path: Path) -> None:
    made: Any = build(Generator, "virtual", "dataset:digits")
    place = Workplace(data_dir=tmp_path)
    digits = made.source.load(tmp_path, 0)
    held_out = made.held_out(10, 10_000, digits.test.shape, 0, place)
    assert len(held_out) == len(digits.test)
    ours, theirs = (sorted(image.tobytes() for image in s.images) for s in (held_out, digits.test))
    assert ours == theirs
