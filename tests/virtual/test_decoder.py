"""One untrained decoder a class."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from vhl.virtual import decoder
from vhl.virtual.decoder import Decoder, _decode

SHAPE = (16, 16, 3)


def images(
    classes: int = 3, per_class: int = 4, shape: tuple[int, int, int] = SHAPE, **options: Any
) -> np.ndarray:
    return Decoder(**{"width": 8, **options}).generate(classes, per_class, shape, 0).images


@pytest.mark.parametrize(
    "asked, made",
    [
        ((32, 32), (32, 32)),
        ((28, 28), (32, 32)),
        ((20, 12), (32, 16)),
        ((8, 5), (8, 8)),
        ((128, 200), (128, 128)),
    ],
)
def test_strides_reach_the_size_asked_for(asked, made):
    out = _decode(torch.ones(1, 4), 2, (*asked, 1), np.random.default_rng(0))
    assert out.shape == (1, 1, *made)


def test_network_is_four_transposed_and_three_plain_convolutions():
    """The same weights, in the order they are drawn, in a network of torch's own layers."""
    rng, width, latent = np.random.default_rng(3), 5, 6
    latents = torch.randn(2, latent, generator=torch.Generator().manual_seed(0))
    layers: list[torch.nn.Module] = [torch.nn.Linear(latent, width * 64, bias=False), torch.nn.LeakyReLU(0.2)]
    layers += [torch.nn.Unflatten(1, (width, 8, 8))]
    for kernel, stride in [((3, 3), (1, 1)), ((3, 3), (1, 1)), ((4, 3), (2, 1)), ((4, 4), (2, 2))]:
        layers += [
            torch.nn.ConvTranspose2d(width, width, kernel, stride, 1, bias=False),
            torch.nn.LeakyReLU(0.2),
        ]
    for outputs in (width, width, 3):
        layers += [torch.nn.Conv2d(width, outputs, 3, padding=1, bias=False), torch.nn.LeakyReLU(0.2)]
    layers[-1] = torch.nn.Tanh()
    fan_ins = [latent, 9 * width, 9 * width, 6 * width, 4 * width, 9 * width, 9 * width, 9 * width]
    weighted = [layer for layer in layers if hasattr(layer, "weight")]
    for layer, fan_in in zip(weighted, fan_ins, strict=True):
        weight = layer.weight.T if isinstance(layer, torch.nn.Linear) else layer.weight
        gain = 1 if layer is weighted[-1] else 2
        numbers = rng.standard_normal(tuple(weight.shape), np.float32) * math.sqrt(gain / fan_in)
        weight.data.copy_(torch.from_numpy(numbers))

    expected = torch.nn.Sequential(*layers)(latents)
    ours = _decode(latents, width, (32, 16, 3), np.random.default_rng(3))
    torch.testing.assert_close(ours, expected.detach(), rtol=1e-4, atol=1e-5)


def test_without_noise_and_mean_a_network_without_biases_gives_grey():
    assert (images(mean_deviation=0, deviation=0) == 128).all()  # 0.5·255 = 127.5, to even


def test_no_deviation_repeats_one_image_a_class():
    made = images(deviation=0).reshape(3, 4, -1)
    assert (made == made[:, :1]).all()
    assert len({image.tobytes() for image in made[:, 0]}) == 3


def test_every_class_has_weights_of_its_own():
    """Without class means the latents of all classes are alike: only weights can tell the classes apart."""
    made = images(mean_deviation=0, per_class=40).reshape(3, 40, -1) / 255
    centres = made.mean(1)
    halves = np.abs(made[:, :20].mean(1) - made[:, 20:].mean(1)).mean()
    for first, second in [(0, 1), (0, 2), (1, 2)]:
        assert np.abs(centres[first] - centres[second]).mean() > 2 * halves


def test_a_larger_class_mean_makes_samples_of_a_class_alike():
    def likeness(mean_deviation: float) -> float:
        made = images(3, 20, mean_deviation=mean_deviation, deviation=0.5).reshape(3, 20, -1)
        return float(np.mean([np.corrcoef(one).mean() for one in made]))

    assert likeness(0.0) < likeness(0.5) < likeness(2.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("width", [8, 32])
def test_tanh_is_not_saturated(seed, width):
    made = Decoder(width=width).generate(5, 5, (32, 32, 3), seed).images
    assert ((made < 2) | (made > 253)).mean() < 0.15
    assert made.std() > 0.15 * 255


@pytest.mark.parametrize("option", [{"latent": 16}, {"width": 9}])
def test_every_other_option_changes_the_images(option):
    assert (images(**option) != images()).mean() > 0.5


def test_the_chunk_decides_nothing_but_rounding(monkeypatch):
    """Parts may end within a class and hold several classes."""
    whole = images().astype(int)
    monkeypatch.setattr(decoder, "_CHUNK", 5 * 8 * 16 * 16)
    assert np.abs(images() - whole).max() <= 1
