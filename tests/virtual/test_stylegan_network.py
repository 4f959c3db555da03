"""StyleGAN2's layers against plain definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.signal import convolve2d, correlate2d
from torch.nn.functional import conv2d

from vhl.virtual._stylegan import (
    Network,
    activate,
    blur,
    demodulation,
    layer_width,
    modulated_convolution,
    pixel_norm,
    upsample,
)

FILTER = np.outer([1, 3, 3, 1], [1, 3, 3, 1]) / 16


@pytest.fixture
def case() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Maps (3 samples, 4 channels, 5×6), a weight to 2 channels, and styles."""
    torch.manual_seed(0)
    return torch.randn(3, 4, 5, 6), torch.randn(2, 4, 3, 3), 1 + torch.randn(3, 4)


def own_weight(weight: torch.Tensor, style: torch.Tensor, demodulate: bool) -> torch.Tensor:
    """The weight of one sample, written out channel by channel."""
    modulated = torch.empty_like(weight)
    for output in range(weight.shape[0]):
        for channel in range(weight.shape[1]):
            modulated[output, channel] = weight[output, channel] * style[channel]
        if demodulate:
            modulated[output] /= modulated[output].square().sum().sqrt()
    return modulated


@pytest.mark.parametrize("demodulate", [True, False])
def test_modulated_convolution_is_a_loop_over_samples(case, demodulate):
    maps, weight, style = case
    expected = torch.cat(
        [
            conv2d(maps[n : n + 1], own_weight(weight, style[n], demodulate), padding=1)
            for n in range(len(maps))
        ]
    )
    torch.testing.assert_close(modulated_convolution(maps, weight, style, demodulate=demodulate), expected)


def test_doubling_convolution_is_zero_stuffing_convolution_and_blur(case):
    maps, weight, style = case
    out = modulated_convolution(maps, weight, style, double=True)
    assert out.shape == (3, 2, 10, 12)
    for n in range(3):
        kernels = own_weight(weight, style[n], True).numpy()
        for output in range(2):
            stuffed = np.zeros((4, 9, 11))
            stuffed[:, ::2, ::2] = maps[n]
            wide = sum(convolve2d(stuffed[c], kernels[output, c]) for c in range(4))  # 11×13
            expected = correlate2d(np.pad(wide, 1), FILTER, mode="valid")
            np.testing.assert_allclose(out[n, output], expected, atol=1e-5)


def test_demodulated_weights_have_norm_one(case):
    _, weight, style = case
    factor = demodulation(weight, style)
    for n in range(3):
        scaled = weight * style[n][None, :, None, None] * factor[n][:, None, None, None]
        torch.testing.assert_close(scaled.square().sum((1, 2, 3)), torch.ones(2))


def test_demodulation_keeps_unit_variance_whatever_the_style():
    torch.manual_seed(1)
    maps, weight = torch.randn(2, 16, 80, 80), torch.randn(4, 16, 3, 3)
    style = torch.tensor([[0.01], [50.0]]) * (1 + torch.rand(2, 16))
    out = modulated_convolution(maps, weight, style)[:, :, 1:-1, 1:-1]  # the border has zeros beside it
    torch.testing.assert_close(out.std((2, 3)), torch.ones(2, 4), atol=0.06, rtol=0)


def test_up_sampling_keeps_a_constant():
    constant = torch.full((1, 2, 6, 6), 3.0)
    assert upsample(constant).shape == (1, 2, 12, 12)
    torch.testing.assert_close(upsample(constant)[:, :, 1:-1, 1:-1], torch.full((1, 2, 10, 10), 3.0))


def test_up_sampling_weighs_the_near_pixel_three_times_the_far_one():
    row = torch.tensor([0.0, 4.0, 12.0])
    doubled = upsample(row.expand(1, 1, 3, 3))[0, 0, 2]
    assert doubled[1:-1].tolist() == [1.0, 3.0, 6.0, 10.0]  # ¾·0 + ¼·4, ¼·0 + ¾·4, ¾·4 + ¼·12, ¼·4 + ¾·12


def test_blur_spreads_a_point_by_its_filter():
    point = torch.zeros(1, 1, 9, 9)
    point[0, 0, 4, 4] = 1
    np.testing.assert_allclose(blur(point)[0, 0, 2:6, 2:6], FILTER)
    assert blur(point).sum().item() == pytest.approx(4)


def test_pixel_norm_gives_every_latent_a_mean_square_of_one():
    normed = pixel_norm(torch.tensor([[3.0, 4.0], [0.0, -0.1]]))
    torch.testing.assert_close(normed, torch.tensor([[3.0, 4.0], [0.0, -5.0]]) / np.sqrt([12.5]).item())


def test_activation():
    torch.testing.assert_close(activate(torch.tensor([2.0, -1.0])), torch.tensor([2.0, -0.2]) * 2**0.5)


@pytest.mark.parametrize(
    "width, size, expected", [(512, 32, 512), (512, 128, 256), (64, 256, 64), (8, 65_536, 1)]
)
def test_layer_width(width, size, expected):
    assert layer_width(width, size) == expected


def network(**options: int) -> Network:
    given = {"size": 16, "channels": 3, "style": 8, "width": 6, "mapping_layers": 1, **options}
    return Network(np.random.default_rng(0), **given)  # type: ignore[arg-type]


def silence(made: Network) -> list[torch.Tensor]:
    return [torch.zeros(1, 1, size, size) for size in made.noise_sizes]


def test_layers_of_the_network():
    made = network()
    assert made.noise_sizes == [4, 8, 8, 16, 16]
    assert made(torch.ones(2, 8), silence(made)).shape == (2, 3, 16, 16)


@pytest.mark.parametrize("layer", range(5))
def test_noise_of_every_layer_reaches_the_image(layer):
    made = network()
    quiet = made(torch.ones(1, 8), silence(made))
    noise = silence(made)
    noise[layer] += 0.5
    assert (made(torch.ones(1, 8), noise) - quiet).abs().max() > 0.05


def test_the_image_is_the_sum_of_all_skips():
    """Without the last to-image layers, the up-sampled image of the layers before is left."""
    made, short = network(size=8), network(size=8)
    latents = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    short.to_image[1].weight.zero_()
    small = network(size=8)
    small.blocks, small.to_image = small.blocks[:1], small.to_image[:1]
    skips = short(latents, silence(short))
    torch.testing.assert_close(skips, upsample(small(latents, silence(small)[:1])))
    assert (made(latents, silence(made)) - skips).abs().mean() > 0.1


def test_latents_matter_by_direction_alone():
    """PixelNorm takes their length away."""
    made = network()
    latents = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        made(latents, silence(made)), made(3 * latents, silence(made)), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_mapping_layers(layers):
    assert [weight.shape for weight in network(mapping_layers=layers).mapping] == [(8, 8)] * layers


def test_weights_are_scaled_by_their_fan_in():
    made = network(width=64, style=128, size=8)
    assert made.constant.std().item() == pytest.approx(1, rel=0.1)
    assert made.mapping[0].std().item() == pytest.approx(128**-0.5, rel=0.1)
    for block in made.blocks:
        for layer in block:
            assert layer.weight.std().item() == pytest.approx((64 * 9) ** -0.5, rel=0.1)
            assert layer.affine.std().item() == pytest.approx(128**-0.5, rel=0.1)
