from __future__ import annotations

import numpy as np
import pytest

from vhl.report.embedding import embed


def clusters(each: int, dimensions: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Three clusters, a hundred standard deviations apart."""
    rng = np.random.default_rng(0)
    labels = np.arange(3).repeat(each)
    values = 100 * np.eye(dimensions)[labels] + rng.normal(size=(len(labels), dimensions))
    return values.astype(np.float32), labels


def test_neighbours_stay_neighbours() -> None:
    values, labels = clusters(each=25)
    plane = embed(values)
    assert plane.shape == (75, 2) and np.isfinite(plane).all()
    distances = np.linalg.norm(plane[:, None] - plane[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    assert (labels[distances.argmin(1)] == labels).all()


def test_the_same_picture_every_time() -> None:
    values = np.random.default_rng(0).normal(size=(120, 60)).astype(np.float32)
    np.testing.assert_array_equal(embed(values), embed(values))


@pytest.mark.parametrize("count", [2, 3, 5])
def test_few_samples_have_a_place_too(count: int) -> None:
    plane = embed(clusters(each=2)[0][:count])
    assert plane.shape == (count, 2) and np.isfinite(plane).all()
    assert len(np.unique(plane, axis=0)) == count
