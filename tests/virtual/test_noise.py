"""Up-sampled Gaussian noise against its formula, computed apart."""

from __future__ import annotations

from math import erf, sqrt

import numpy as np
import pytest

from vhl.virtual import noise
from vhl.virtual.noise import Noise


def below(value: float, deviation: float) -> float:
    """P(N(0, deviation²) < value)."""
    return 0.5 * (1 + erf(value / deviation / sqrt(2)))


def test_formula_on_the_grid_itself():
    """At the grid's own size nothing is up-sampled: pixel = clamp(m_c + 0.5·n)."""
    images = Noise().generate(4, 700, (8, 8, 3), 11).images
    means_stream, noise_stream = (np.random.default_rng(s) for s in np.random.SeedSequence(11).spawn(2))
    means = means_stream.standard_normal((4, 3, 8, 8), np.float32)
    exact = np.repeat(means, 700, axis=0) + 0.5 * noise_stream.standard_normal((2800, 3, 8, 8), np.float32)
    expected = np.rint(np.clip(exact, 0, 1) * 255).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(images, expected)


@pytest.mark.parametrize("deviation", [0.0, 0.5, 2.0])
def test_share_of_clamped_pixels_is_that_of_the_two_gaussians(deviation):
    """m + deviation·n ~ N(0, 1 + deviation²) over classes and samples."""
    images = Noise(deviation=deviation).generate(300, 2, (8, 8, 3), 0).images
    spread = sqrt(1 + deviation**2)
    assert (images == 0).mean() == pytest.approx(below(0.5 / 255, spread), abs=0.01)
    assert (images == 255).mean() == pytest.approx(1 - below(254.5 / 255, spread), abs=0.01)


def test_samples_scatter_around_the_class_mean_with_the_deviation_asked_for():
    images = Noise(deviation=0.05).generate(5, 2000, (8, 8, 3), 0).images.reshape(5, 2000, -1) / 255
    centre = images.mean(1)
    unclamped = (centre > 0.25) & (centre < 0.75)  # at least five deviations from both ends
    assert unclamped.sum() > 50
    np.testing.assert_allclose(images.std(1)[unclamped], 0.05, rtol=0.08)


def test_no_deviation_repeats_the_class_mean():
    images = Noise(deviation=0).generate(2, 3, (16, 16, 1), 0).images.reshape(2, 3, -1)
    assert (images == images[:, :1]).all()
    assert (images[0] != images[1]).any()


def test_up_sampling_is_bilinear():
    """Pixel centres at (i + ½)·grid/size − ½, linear between two grid points, flat past the edge."""
    grid, height, width = 3, 7, 10
    coarse = np.random.default_rng(np.random.SeedSequence(2).spawn(2)[0]).standard_normal(
        (grid, grid), np.float32
    )

    def weights(size: int) -> np.ndarray:
        place = np.clip((np.arange(size) + 0.5) * grid / size - 0.5, 0, grid - 1)
        return np.maximum(0, 1 - np.abs(place[:, None] - np.arange(grid)))

    images = Noise(grid=grid, deviation=0).generate(1, 1, (height, width, 1), 2).images[0, :, :, 0]
    expected = np.clip(weights(height) @ coarse @ weights(width).T, 0, 1) * 255
    assert np.abs(images - expected).max() <= 0.51


def test_the_chunk_decides_nothing(monkeypatch):
    whole = Noise().generate(3, 20, (32, 32, 3), 0).images
    monkeypatch.setattr(noise, "_CHUNK", 7)
    assert Noise().generate(3, 20, (32, 32, 3), 0).images.tobytes() == whole.tobytes()
