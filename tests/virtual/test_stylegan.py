"""The untrained StyleGAN2 as a generator of classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vhl.virtual import stylegan
from vhl.virtual.inspection import separability
from vhl.virtual.stylegan import StyleGAN, _World

SHAPE = (16, 16, 3)


def world(classes: int = 3, **options: Any) -> _World:
    return _World(StyleGAN(width=8, **options), classes, SHAPE, np.random.default_rng(0), "cpu")


def images(
    classes: int = 3, per_class: int = 4, shape: tuple[int, int, int] = SHAPE, **options: Any
) -> np.ndarray:
    return StyleGAN(**{"width": 8, **options}).generate(classes, per_class, shape, 0).images


@pytest.mark.parametrize("strength, felt", [(0.0, False), (0.1, True)])
def test_noise_strength(strength, felt):
    made = world(noise_strength=strength)
    style = made.latent_means.shape[1]
    quiet = np.zeros((2, made.row_length), np.float32)
    loud = quiet.copy()
    loud[:, style:] = np.random.default_rng(1).standard_normal(loud[:, style:].shape)
    labels = np.array([0, 2])
    assert bool((made.render(labels, quiet) != made.render(labels, loud)).any()) is felt


@pytest.mark.parametrize("strength, felt", [(0.0, False), (0.1, True)])
def test_noise_means_depend_on_the_class(strength, felt):
    """Classes with the same latent differ by the means of their noise, and only if it has a strength."""
    made = world(noise_strength=strength)
    made.latent_means[1] = made.latent_means[0]
    first, second = made.render(np.array([0, 1]), np.zeros((2, made.row_length), np.float32))
    assert bool((first != second).any()) is felt


def test_one_network_for_all_classes():
    """A class is its means and nothing else."""
    made = world()
    made.latent_means[1], made.noise_means[1] = made.latent_means[0], made.noise_means[0]
    rows = np.tile(np.random.default_rng(1).standard_normal((1, made.row_length)).astype(np.float32), (2, 1))
    first, second = made.render(np.array([0, 1]), rows)
    torch.testing.assert_close(first, second)


def test_class_means_have_the_deviation_asked_for():
    assert world(50).latent_means.std().item() == pytest.approx(0.5, rel=0.05)
    assert world(50, mean_deviation=2.0).latent_means.std().item() == pytest.approx(2, rel=0.05)
    assert world(50).noise_means.std().item() == pytest.approx(1, rel=0.15)


def test_no_deviation_and_no_noise_repeats_one_image_a_class():
    made = images(deviation=0, noise_strength=0).reshape(3, 4, -1).astype(int)
    assert np.abs(made - made[:, :1]).max() <= 1  # a chunk's size may change the rounding
    assert len({image.tobytes() for image in made[:, 0]}) == 3


def test_deviation_against_mean_deviation_is_the_spread_within_a_class():
    def spread(**options: float) -> float:
        made = images(4, 20, noise_strength=0, **options).reshape(4, 20, -1) / 255
        return float(made.std(1).mean())

    assert spread(deviation=0.1) < spread(deviation=0.3) < spread(deviation=1.0)
    assert spread(mean_deviation=2.0) < spread(mean_deviation=0.5) < spread(mean_deviation=0.1)


@pytest.mark.parametrize("classes, style, deviation", [(99, 64, 0.3), (100, 256, 0.2)])
def test_unset_style_and_deviation_go_by_the_class_count(classes, style, deviation):
    unset = images(classes, 1, (4, 4, 1), width=2)
    stated = images(classes, 1, (4, 4, 1), width=2, style=style, deviation=deviation)
    changed = images(classes, 1, (4, 4, 1), width=2, style=style, deviation=deviation + 0.1)
    assert unset.tobytes() == stated.tobytes() != changed.tobytes()


@pytest.mark.parametrize(
    "option", [{"style": 32}, {"width": 9}, {"mapping_layers": 2}, {"mapping_layers": 0}]
)
def test_every_other_option_changes_the_images(option):
    assert (images(**option) != images()).mean() > 0.5


def test_width_is_that_of_the_network():
    assert world().network.constant.shape == (8, 4, 4)


def test_contrast_centres_the_class_means_channel_by_channel():
    made = world(20)
    shift, scale = made.contrast()
    raw = made.render(np.arange(20), np.zeros((20, made.row_length), np.float32))
    pixels = raw * scale + shift
    torch.testing.assert_close(pixels.mean((0, 2, 3)), torch.full((3,), 0.5))
    torch.testing.assert_close(pixels.std((0, 2, 3)), torch.full((3,), 0.25))


@pytest.mark.parametrize("seed", range(4))
def test_few_pixels_are_clamped(seed):
    made = StyleGAN(width=16).generate(10, 10, (32, 32, 3), seed).images
    assert ((made == 0) | (made == 255)).mean() < 0.1
    assert made.std((0, 1, 2)).min() > 0.15 * 255


def test_standardising_is_a_change_of_contrast_and_no_more():
    plain, standard = (images(standardise=on).reshape(-1, 3).astype(float) for on in (False, True))
    for channel in range(3):
        inside = (plain[:, channel] % 255 != 0) & (standard[:, channel] % 255 != 0)
        assert inside.sum() > 100
        assert np.corrcoef(plain[inside, channel], standard[inside, channel])[0, 1] > 0.999


def test_raw_output_is_clamped_where_it_is_not_standardised():
    rng = np.random.default_rng(np.random.SeedSequence(0).spawn(2)[0])
    options = {"width": 8, "deviation": 0, "noise_strength": 0}
    made = _World(StyleGAN(**options), 3, SHAPE, rng, "cpu")
    raw = made.render(np.arange(3), np.zeros((3, made.row_length), np.float32)).permute(0, 2, 3, 1).numpy()
    expected = np.rint(np.clip(raw, 0, 1) * 255)
    assert (raw < 0).mean() > 0.1 < (raw > 1).mean()
    assert np.abs(images(3, 1, standardise=False, **options) - expected).max() <= 1


def test_other_sizes_are_resized_from_the_next_power_of_two():
    full = images(2, 3, (32, 32, 3))
    small = images(2, 3, (20, 12, 3))
    for whole, part in zip(full, small, strict=True):
        expected = np.asarray(Image.fromarray(whole).resize((12, 20), Image.Resampling.BILINEAR)).astype(int)
        assert np.abs(part - expected).mean() < 2  # clamped before, not after, resizing


def test_the_chunk_decides_nothing_but_rounding(monkeypatch):
    whole = images().astype(int)
    monkeypatch.setattr(stylegan, "_chunk", lambda numbers, device: 5)
    assert np.abs(images() - whole).max() <= 1


def test_chunks_shrink_as_images_grow():
    assert stylegan._chunk(2**16, "cpu") == 8
    assert stylegan._chunk(2**16, "cuda") == 1024
    assert stylegan._chunk(2**30, "cpu") == 1


def test_classes_can_be_told_apart_by_a_linear_probe():
    made = StyleGAN(width=8).generate(5, 60, SHAPE, 0)
    assert separability(made) > 0.9


def test_release_has_no_noise_and_raw_pixels():
    release = StyleGAN(width=8, **StyleGAN.release)
    assert (release.noise_strength, release.standardise) == (0.0, False)
