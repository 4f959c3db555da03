# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The ends of a training step as one Triton kernel each: making its images, and moving its weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from vhl.training.streams import Stream

_PIXELS = 1024  # numbers that a program makes of one image
_WEIGHTS = 1024  # weights that a program moves


@triton.jit
def _images_kernel(
    images, labels, scale, shift, counter, index, row, column, flip, hole_row, hole_column, out, out_labels,
    BATCH, PADDED_HEIGHT: constexpr, PADDED_WIDTH: constexpr, HEIGHT: constexpr, WIDTH: constexpr,
    C: constexpr, CUTOUT: constexpr, PIXELS: constexpr,
):  # fmt: skip
    """One image of this step: cropped, flipped, normalised and with its hole; its label beside it."""
    sample = tl.program_id(0)
    place = tl.load(counter) * BATCH + sample
    number = tl.load(index + place)
    element = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    inside = element < HEIGHT * WIDTH * C
    channel, x, y = element % C, element // C % WIDTH, element // (C * WIDTH)
    from_x, from_y = x, y
    if flip is not None:
        from_x = tl.where(tl.load(flip + place), WIDTH - 1 - x, x)
    if row is not None:
        from_x, from_y = from_x + tl.load(column + place), from_y + tl.load(row + place)
    source = ((number * PADDED_HEIGHT + from_y) * PADDED_WIDTH + from_x) * C + channel
    factor, summand = tl.load(scale + channel, inside), tl.load(shift + channel, inside)
    values = tl.load(images + source, inside).to(factor.dtype) * factor + summand
    if hole_row is not None:
        down, across = y - tl.load(hole_row + place), x - tl.load(hole_column + place)
        low: constexpr = CUTOUT // 2
        high: constexpr = CUTOUT - CUTOUT // 2
        hole = (down >= -low) & (down < high) & (across >= -low) & (across < high)
        values = tl.where(hole, 0.0, values)
    tl.store(out + sample * HEIGHT * WIDTH * C + element, values, inside)
    tl.store(out_labels + sample, tl.load(labels + number))


def make_images(
    stream: Stream, counter: Tensor, index: Tensor, choices: Mapping[str, Tensor], out: Tensor
) -> Tensor:
    """What ``stream.batch`` makes of row ``counter`` of a schedule, put into ``out`` (N, H, W, C).

    Only the first N samples of the row are used. Returns their labels.
    """
    samples, height, width, channels = out.shape
    labels = torch.empty(samples, dtype=stream.labels.dtype, device=out.device)
    names = ("row", "column", "flip", "hole_row", "hole_column")
    _images_kernel[samples, triton.cdiv(height * width * channels, _PIXELS)](
        stream.images, stream.labels, stream.scale, stream.shift, counter, index,
        *(choices.get(name) for name in names), out, labels, index.shape[1], stream.images.shape[1],
        stream.images.shape[2], height, width, channels, stream.cutout, _PIXELS,
    )  # fmt: skip
    return labels


@triton.jit
def _sgd_kernel(
    weights, gradient, momentum, lowered, counter, rate, COUNT,
    DECAY: constexpr, KEEP: constexpr, WEIGHTS: constexpr,
):  # fmt: skip
    """v ← keep·v + (g + decay·w) and w ← w − rate·v, and w once more in the shorter type.

    The factors are constants: as arguments they would be rounded to 32 bits.
    """
    place = tl.program_id(0) * WEIGHTS + tl.arange(0, WEIGHTS)
    inside = place < COUNT
    weight = tl.load(weights + place, inside)
    velocity = tl.load(momentum + place, inside) * KEEP
    velocity += tl.load(gradient + place, inside) + DECAY * weight
    weight -= tl.load(rate) * velocity
    tl.store(momentum + place, velocity, inside)
    tl.store(weights + place, weight, inside)
    if lowered is not None:
        tl.store(lowered + place, weight, inside)
    if tl.program_id(0) == 0:
        tl.store(counter, tl.load(counter) + 1)


def sgd(
    weights: Tensor, gradient: Tensor, momentum: Tensor, lowered: Tensor | None,
    counter: Tensor, rate: Tensor, *, decay: float, keep: float,
) -> None:  # fmt: skip
    """A step of gradient descent with momentum and weight decay; ``counter`` goes up by one."""
    count = weights.numel()
    _sgd_kernel[(triton.cdiv(count, _WEIGHTS),)](
        weights, gradient, momentum, lowered, counter, rate, count, decay, keep, _WEIGHTS
    )
