"""The generator network of StyleGAN2 as it stands before any training (Karras et al., CVPR 2020).

Learned biases and learned noise strengths start at zero, so they are absent here; the strength of the noise
is given from outside. The equalised learning rate (weights ~ N(0, 1), multiplied by 1/√fan-in at run time)
comes to weights ~ N(0, 1/fan-in) where nothing is learned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch.nn.functional import conv2d, conv_transpose2d, leaky_relu


def pixel_norm(latents: torch.Tensor) -> torch.Tensor:
    """Scale every latent vector to a mean square of one."""
    return latents * torch.rsqrt(latents.square().mean(1, keepdim=True) + 1e-8)


def activate(values: torch.Tensor) -> torch.Tensor:
    """Leaky ReLU, times √2 to keep the variance."""
    return leaky_relu(values, 0.2).mul_(math.sqrt(2))


def blur(maps: torch.Tensor) -> torch.Tensor:
    """The [1, 3, 3, 1] filter over zero-stuffed maps; one pixel fewer a side comes out."""
    return conv2d(maps, _taps(maps), padding=1, groups=maps.shape[1])


def upsample(maps: torch.Tensor) -> torch.Tensor:
    """Twice the size, by zero-stuffing and the [1, 3, 3, 1] filter: weights ¾ and ¼ along each side."""
    return conv_transpose2d(maps, _taps(maps), stride=2, padding=1, groups=maps.shape[1])


def _taps(maps: torch.Tensor) -> torch.Tensor:
    """The filter for each channel; it sums to 2 along a side, for every other pixel of its input is zero."""
    taps = torch.tensor([1.0, 3.0, 3.0, 1.0], device=maps.device) / 4
    return torch.outer(taps, taps).expand(maps.shape[1], 1, 4, 4)


def demodulation(weight: torch.Tensor, style: torch.Tensor) -> torch.Tensor:
    """d[n, o] = 1 / ‖weight[o]·style[n]‖: every output channel of a sample then has a weight of norm one."""
    return torch.rsqrt(style.square() @ weight.square().sum((2, 3)).T + 1e-8)


def modulated_convolution(
    maps: torch.Tensor,
    weight: torch.Tensor,
    style: torch.Tensor,
    *,
    demodulate: bool = True,
    double: bool = False,
) -> torch.Tensor:
    """Convolve sample n with weight[o, i]·style[n, i]·d[n, o]; ``double`` also doubles the size, with blur.

    A convolution is linear, so the style may scale the inputs and d the outputs instead: the same result,
    without a weight of its own for every sample, which takes far more memory and up to three times as long.
    """
    scaled = maps * style[:, :, None, None]
    if double:
        out = blur(conv_transpose2d(scaled, weight.transpose(0, 1), stride=2))
    else:
        out = conv2d(scaled, weight, padding=weight.shape[-1] // 2)
    return out.mul_(demodulation(weight, style)[:, :, None, None]) if demodulate else out


@dataclass(frozen=True)
class _Layer:
    """A modulated convolution's weight, and the affine map from the latent to its style (bias one)."""

    weight: torch.Tensor
    affine: torch.Tensor

    def __call__(self, maps: torch.Tensor, latent: torch.Tensor, **options: bool) -> torch.Tensor:
        return modulated_convolution(maps, self.weight, latent @ self.affine.T + 1, **options)


class Network:
    """Latents and per-layer noise → images (N, channels, size, size), ``size`` a power of two from 4 on."""

    def __init__(
        self,
        rng: np.random.Generator,
        *,
        size: int,
        channels: int,
        style: int,
        width: int,
        mapping_layers: int,
        device: torch.device | str = "cpu",
    ) -> None:
        def draw(*shape: int, fan_in: int) -> torch.Tensor:
            return torch.from_numpy(rng.standard_normal(shape, np.float32)).to(device) / math.sqrt(fan_in)

        def layer(inputs: int, outputs: int, kernel: int) -> _Layer:
            weight = draw(outputs, inputs, kernel, kernel, fan_in=inputs * kernel**2)
            return _Layer(weight, draw(inputs, style, fan_in=style))

        sizes = [2**power for power in range(2, size.bit_length())]
        widths = [layer_width(width, size) for size in sizes]
        self.mapping = [draw(style, style, fan_in=style) for _ in range(mapping_layers)]
        self.constant = draw(widths[0], 4, 4, fan_in=1)
        self.blocks = [[layer(widths[0], widths[0], 3)]]
        self.blocks += [[layer(a, b, 3), layer(b, b, 3)] for a, b in pairwise(widths)]
        self.to_image = [layer(width, channels, 1) for width in widths]
        self.noise_sizes = [4] + [size for size in sizes[1:] for _ in range(2)]

    def __call__(self, latents: torch.Tensor, noise: list[torch.Tensor]) -> torch.Tensor:
        """``noise`` holds one (N, 1, s, s) map for each s of ``noise_sizes``, added before the activation."""
        latent = pixel_norm(latents)
        for weight in self.mapping:
            latent = activate(latent @ weight.T)
        remaining: Iterator[torch.Tensor] = iter(noise)
        maps = self.constant.expand(len(latents), -1, -1, -1)
        image: torch.Tensor | None = None
        for block, to_image in zip(self.blocks, self.to_image, strict=True):
            for position, layer in enumerate(block):
                grown = layer(maps, latent, double=image is not None and position == 0)
                maps = activate(grown.add_(next(remaining)))
            skip = to_image(maps, latent, demodulate=False)
            image = skip if image is None else upsample(image).add_(skip)
        assert image is not None  # there is always the 4×4 block
        return image


def layer_width(width: int, size: int) -> int:
    """Channels of the maps of a size: StyleGAN2's 32,768 / size, but at most ``width``."""
    return max(1, min(width, 32_768 // size))
