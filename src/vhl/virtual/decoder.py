"""Images from small untrained decoders, one for each class."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch.nn.functional import conv2d, conv_transpose2d, leaky_relu

from vhl.data.images import ImageSet
from vhl.virtual._pixels import assemble, resize
from vhl.virtual.base import DrawnGenerator, Order, Shape

_CHUNK = 2**23  # numbers in the largest map of one chunk: bounds memory
_GRID = 8  # side of the map that the linear layer makes
_TRANSPOSED = 4  # layers that may double the map


class Decoder(DrawnGenerator):
    """Small untrained CNNs, one a class, each with weights of its own.

    64 numbers z ~ N(m_c, 1), class mean m_c ~ N(0, 0.5²) → linear → 8×8 map → 4 transposed convolutions →
    3 convolutions → tanh, from [−1, 1] to [0, 1] (VHL, appendix C.3, "simple CNN generator"). Leaky ReLU and
    weights ~ N(0, 2/fan-in) keep the output at a scale that tanh does not flatten.

    The last k ≤ 4 transposed convolutions have stride 2, with the smallest k for which 8·2^k reaches the side
    asked for (height and width each); a size that is no 8·2^k comes from resizing.
    """

    version: ClassVar[int | None] = 1

    latent: int = Field(64, ge=1, description="dimensions of the noise that a decoder turns into an image")
    width: int = Field(32, ge=1, description="channels of a decoder's layers")
    mean_deviation: float = Field(0.5, ge=0, description="standard deviation of the class means")
    deviation: float = Field(1.0, ge=0, description="standard deviation of a sample around its class mean")

    def draw(self, order: Order) -> ImageSet:
        class_seeds, sample_rng = order.fixed.spawn(order.classes), np.random.default_rng(order.samples)
        labels, shape = order.labels, order.shape

        @torch.inference_mode()
        def make(part: slice) -> torch.Tensor:
            rows = sample_rng.standard_normal((len(labels[part]), self.latent), np.float32)
            images = []
            for label in np.unique(labels[part]):  # the labels are in class order
                rng = np.random.default_rng(class_seeds[label])
                mean = self.mean_deviation * rng.standard_normal(self.latent, np.float32)
                latents = mean + self.deviation * rows[labels[part] == label]
                images.append(
                    _decode(torch.from_numpy(latents).to(order.place.device), self.width, shape, rng)
                )
            return resize(torch.cat(images) / 2 + 0.5, *shape[:2])

        largest = self.width * math.prod(_GRID * 2 ** _doublings(side) for side in shape[:2])
        return assemble(labels, shape, make, chunk=max(1, _CHUNK // largest), progress=order.place.progress)


def _decode(latents: torch.Tensor, width: int, shape: Shape, rng: np.random.Generator) -> torch.Tensor:
    """Latents through the decoder whose weights come next from ``rng``: images in [−1, 1]."""

    def draw(*size: int, fan_in: float, gain: float = math.sqrt(2)) -> torch.Tensor:
        weight = torch.from_numpy(rng.standard_normal(size, np.float32)) * (gain / math.sqrt(fan_in))
        return weight.to(latents.device)

    count = latents.shape[1]
    flat = leaky_relu(latents @ draw(count, width * _GRID**2, fan_in=count), 0.2)
    maps = flat.view(-1, width, _GRID, _GRID)
    doublings = [_doublings(side) for side in shape[:2]]
    for layer in range(_TRANSPOSED):
        strides = [2 if layer >= _TRANSPOSED - doubled else 1 for doubled in doublings]
        kernel = [4 if stride == 2 else 3 for stride in strides]
        fan_in = width * math.prod(side / stride for side, stride in zip(kernel, strides, strict=True))
        weight = draw(width, width, *kernel, fan_in=fan_in)
        maps = leaky_relu(conv_transpose2d(maps, weight, stride=strides, padding=1), 0.2)
    for _ in range(2):
        maps = leaky_relu(conv2d(maps, draw(width, width, 3, 3, fan_in=9 * width), padding=1), 0.2)
    return conv2d(maps, draw(shape[2], width, 3, 3, fan_in=9 * width, gain=1), padding=1).tanh_()


def _doublings(side: int) -> int:
    """How often 8 must double to reach ``side``, within the layers there are."""
    return min(_TRANSPOSED, max(0, math.ceil(math.log2(side / _GRID))))
