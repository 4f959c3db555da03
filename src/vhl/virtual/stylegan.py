"""Structured noise from an untrained StyleGAN2."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field

from vhl.data.images import ImageSet
from vhl.virtual._pixels import assemble, resize
from vhl.virtual._stylegan import Network, layer_width
from vhl.virtual.base import DrawnGenerator, Order, Shape

_CALIBRATION = 100  # class-mean images that the contrast is measured on, at most


class StyleGAN(DrawnGenerator):
    """An untrained StyleGAN2, one for all classes: the generator of the paper's main results.

    Class mean m_c ~ N(0, 0.5²), latent z = m_c + 0.3·N(0, 1); every layer adds one-channel noise of strength
    0.1, N(n_c, 1) with a mean n_c ~ N(0, 1) of its own for each class and layer (VHL, appendix C.3; Karras et
    al., "Analyzing and Improving the Image Quality of StyleGAN", CVPR 2020).

    The output x has no natural range, and a channel's mean μ can be further from zero than its deviation σ:
    pixel = 0.5 + 0.25·(x − μ)/σ, with μ and σ of each channel measured on the class-mean images (z = m_c).
    Less than a tenth of the pixels is clamped then, and training's normalisation (0.5, 0.25) fits the images.
    They are made at the next power of two that holds the longer side, and resized to the size asked for.
    """

    version: ClassVar[int | None] = 1
    # the authors' noise weights are zero, and they save the raw output, clamped to [0, 1]
    release: ClassVar[dict[str, Any]] = {"noise_strength": 0.0, "standardise": False}

    style: int | None = Field(
        None, ge=1, description="latent dimensions; unset is 64, or 256 from 100 classes on"
    )
    width: int = Field(512, ge=1, description="channels of the widest layers; 64 suits a CPU")
    mapping_layers: int = Field(1, ge=0, description="layers from the latent to the style")
    mean_deviation: float = Field(0.5, gt=0, description="standard deviation of the class means")
    deviation: float | None = Field(
        None,
        ge=0,
        description="deviation of a latent around its class mean; unset is 0.3, or 0.2 from 100 classes on",
    )
    noise_strength: float = Field(
        0.1, ge=0, description="strength of the noise that every layer adds; 0 is none"
    )
    standardise: bool = Field(
        True,
        description="bring each channel to mean 0.5 and deviation 0.25; off clamps the raw output to [0, 1]",
    )

    def draw(self, order: Order) -> ImageSet:
        sample_rng, labels = np.random.default_rng(order.samples), order.labels
        world = _World(
            self, order.classes, order.shape, np.random.default_rng(order.fixed), order.place.device
        )
        shift, scale = world.contrast() if self.standardise else (0.0, 1.0)

        def make(part: slice) -> torch.Tensor:
            rows = sample_rng.standard_normal((len(labels[part]), world.row_length), np.float32)
            return resize(world.render(labels[part], rows) * scale + shift, *order.shape[:2])

        return assemble(labels, order.shape, make, chunk=world.chunk, progress=order.place.progress)


class _World:
    """What all samples share, the network and the class means; one row of normal numbers makes one image."""

    def __init__(
        self,
        options: StyleGAN,
        classes: int,
        shape: Shape,
        rng: np.random.Generator,
        device: torch.device | str,
    ) -> None:
        many = classes >= 100
        style = options.style or (256 if many else 64)
        self.network = Network(
            rng,
            size=max(4, 2 ** (max(shape[:2]) - 1).bit_length()),
            channels=shape[2],
            style=style,
            width=options.width,
            mapping_layers=options.mapping_layers,
            device=device,
        )
        sizes = self.network.noise_sizes
        # after the weights and one row a class, so that more classes leave the first ones as they are
        means = torch.from_numpy(rng.standard_normal((classes, style + len(sizes)), np.float32)).to(device)
        self.latent_means, self.noise_means = means[:, :style] * options.mean_deviation, means[:, style:]
        self.deviation = (0.2 if many else 0.3) if options.deviation is None else options.deviation
        self.noise_strength = options.noise_strength
        self.device = device
        self.row_length = style + sum(size**2 for size in sizes)
        self.chunk = _chunk(max(layer_width(options.width, size) * size**2 for size in sizes), device)

    @torch.inference_mode()
    def render(self, labels: np.ndarray, rows: np.ndarray) -> torch.Tensor:
        """The network's raw output for one sample of each label, made from its row of N(0, 1) numbers."""
        sizes = self.network.noise_sizes
        style = self.latent_means.shape[1]
        numbers, index = torch.from_numpy(rows).to(self.device), torch.from_numpy(labels).to(self.device)
        latents = self.latent_means[index] + self.deviation * numbers[:, :style]
        means = self.noise_means[index].T[:, :, None, None, None]
        maps = torch.split_with_sizes(numbers[:, style:], [size**2 for size in sizes], dim=1)
        noise = [
            self.noise_strength * (flat.view(-1, 1, size, size) + mean)
            for flat, size, mean in zip(maps, sizes, means, strict=True)
        ]
        return self.network(latents, noise)

    def contrast(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Shift and scale of each channel that give the class-mean images mean 0.5 and deviation 0.25."""
        labels = np.arange(min(len(self.latent_means), _CALIBRATION))
        parts = np.array_split(labels, math.ceil(len(labels) / self.chunk))
        images = torch.cat(
            [self.render(part, np.zeros((len(part), self.row_length), np.float32)) for part in parts]
        )
        deviation, mean = torch.std_mean(images, dim=(0, 2, 3))
        scale = (0.25 / deviation.clamp(min=1e-6))[:, None, None]
        return 0.5 - mean[:, None, None] * scale, scale


def _chunk(numbers: int, device: torch.device | str) -> int:
    """Images at a time, where the widest map of one has ``numbers`` numbers."""
    # a CPU is fastest where the maps stay in its cache; a GPU wants much to do at once, in bounded memory
    budget = 2**19 if torch.device(device).type == "cpu" else 2**26
    return max(1, budget // numbers)
