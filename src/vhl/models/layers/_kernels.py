# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Batch normalisation, the addition of a skip and the ReLU as one operation, in Triton kernels.

Images in channels-last order are a matrix of M = N·H·W rows and C columns, which is cut into tiles. The tiles
``group``, ``group + groups``, ... are a group. Sums over the rows are made for each group, then over the
groups, always in the same order: two runs give the same bits. These sweeps go up the rows; the elementwise
kernels after them go down, so that they begin with what is still in the cache.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from triton.language import constexpr

from vhl.models.layers.weighted import EPSILON, MOMENTUM

_MOMENTUM, _EPSILON = constexpr(MOMENTUM), constexpr(EPSILON)
_PROGRAMS = 256  # that sum at once: two for each multiprocessor of a large GPU


@triton.jit
def _tile(row_tile, column_tile, M, C, ROWS: constexpr, COLUMNS: constexpr, EVEN: constexpr):
    """A tile's channels, and its elements' offsets and whether they exist: with EVEN they all do."""
    rows = row_tile * ROWS + tl.arange(0, ROWS)[:, None]
    channels = column_tile * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    mask = tl.full([ROWS, COLUMNS], True, tl.int1) if EVEN else (rows < M) & (channels < C)
    return channels, rows * C + channels, mask


@triton.jit
def _own_tile(M, C, ROWS: constexpr, COLUMNS: constexpr, EVEN: constexpr):
    """The tile of a program of an elementwise kernel: the first programs have the last rows."""
    column_tiles = tl.cdiv(C, COLUMNS)
    row_tile = tl.cdiv(M, ROWS) - 1 - tl.program_id(0) // column_tiles
    return _tile(row_tile, tl.program_id(0) % column_tiles, M, C, ROWS, COLUMNS, EVEN)


@triton.jit
def _row_weights(weights, row_tile, M, PIXELS, ROWS: constexpr, number: constexpr):
    """How much each row of a tile counts where images do not count the same; 0 if it does not exist."""
    rows = row_tile * ROWS + tl.arange(0, ROWS)[:, None]
    return tl.load(weights + rows // PIXELS, rows < M, 0.0).to(number) / PIXELS


@triton.jit
def _rows_in(group, groups, steps, M, ROWS: constexpr):
    """How many rows a group has: only its last tile may be cut short, or missing."""
    last = (steps - 1) * groups + group
    return (steps - 1) * ROWS + tl.minimum(tl.maximum(M - last * ROWS, 0), ROWS)


@triton.jit(do_not_specialize=["steps"])
def _moments_kernel(
    x, partial, weights, PIXELS, M, C, ROWS: constexpr, COLUMNS: constexpr, EVEN: constexpr, steps
):  # fmt: skip
    """Each group's mean, and its sum of squared deviations from that mean; with weights, also their sum."""
    column_tile, group, groups = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    number: constexpr = partial.dtype.element_ty
    channels, offsets, mask = _tile(group, column_tile, M, C, ROWS, COLUMNS, EVEN)
    # Deviations from the group's first row, since plain sums of squares cancel where the mean is large.
    origin = tl.load(x + group * ROWS * C + channels, channels < C).to(number)
    total, squares = tl.zeros([ROWS, COLUMNS], number), tl.zeros([ROWS, COLUMNS], number)
    counts = tl.zeros([ROWS, 1], number)
    for step in tl.range(0, steps, loop_unroll_factor=4):
        channels, offsets, mask = _tile(group + step * groups, column_tile, M, C, ROWS, COLUMNS, EVEN)
        deviations = tl.where(mask, tl.load(x + offsets, mask).to(number) - origin, 0.0)
        if weights is None:
            total += deviations
            squares += deviations * deviations
        else:
            share = _row_weights(weights, group + step * groups, M, PIXELS, ROWS, number)
            counts += share
            total += share * deviations
            squares += share * deviations * deviations
    if weights is None:
        count = _rows_in(group, groups, steps, M, ROWS).to(number)
    else:
        weight = tl.sum(counts, 0, keep_dims=True)
        tl.store(partial + (2 * groups + group) * C + channels, weight + 0.0 * origin, channels < C)
        count = tl.where(weight > 0, weight, 1.0)  # of images that count nothing the sums are 0
    total = tl.sum(total, 0, keep_dims=True)
    squares = tl.sum(squares, 0, keep_dims=True) - total * total / count
    tl.store(partial + group * C + channels, origin + total / count, channels < C)
    tl.store(partial + (groups + group) * C + channels, squares, channels < C)


@triton.jit(do_not_specialize=["steps"])
def _statistics_kernel(
    partial, mean, rstd, running_mean, running_var, weights, groups, steps, M, PIXELS, IMAGES,
    C, ROWS: constexpr, COLUMNS: constexpr, GROUPS: constexpr, PADDED: constexpr,
):  # fmt: skip
    """Mean and 1/√(variance + ε) of all rows from the groups' (Chan et al., 1983), and the running ones."""
    channels, offsets, mask = _tile(0, tl.program_id(0), groups, C, GROUPS, COLUMNS, False)
    group, inside = tl.arange(0, GROUPS)[:, None], channels < C
    means, squares = tl.load(partial + offsets, mask, 0.0), tl.load(partial + groups * C + offsets, mask, 0.0)
    if weights is None:
        counts = tl.where(group < groups, _rows_in(group, groups, steps, M, ROWS), 0).to(means.dtype)
        all_, pixels = M, M
    else:
        counts = tl.load(partial + 2 * groups * C + offsets, mask, 0.0)
        image = tl.arange(0, PADDED)
        seen = tl.load(weights + image, image < IMAGES, 0.0) != 0
        all_, pixels = 1, PIXELS * tl.sum(seen.to(tl.int32), 0)
    origin = tl.load(partial + channels, inside)
    centre = origin + tl.sum(counts * (means - origin), 0, keep_dims=True) / all_
    variance = tl.sum(squares + counts * (means - centre) * (means - centre), 0, keep_dims=True) / all_
    tl.store(mean + channels, centre, inside)
    tl.store(rstd + channels, tl.rsqrt(variance + _EPSILON), inside)
    old_mean, old_variance = tl.load(running_mean + channels, inside), tl.load(running_var + channels, inside)
    tl.store(running_mean + channels, old_mean + _MOMENTUM * (centre - old_mean), inside)
    unbiased = variance * pixels / tl.maximum(pixels - 1, 1)
    tl.store(running_var + channels, old_variance + _MOMENTUM * (unbiased - old_variance), inside)


@triton.jit
def _normalise_kernel(
    x, skip, z, mean, spread, weight, bias, M, RELU: constexpr, TRAINING: constexpr,
    C, ROWS: constexpr, COLUMNS: constexpr, EVEN: constexpr,
):  # fmt: skip
    """z = relu((x − mean)·weight·rstd + bias + skip); ``spread`` is rstd, or in evaluation the variance."""
    channels, offsets, mask = _own_tile(M, C, ROWS, COLUMNS, EVEN)
    inside = channels < C
    rstd = tl.load(spread + channels, inside)
    if not TRAINING:
        rstd = tl.rsqrt(rstd + _EPSILON)
    scale = tl.load(weight + channels, inside) * rstd
    centred = tl.load(x + offsets, mask).to(scale.dtype) - tl.load(mean + channels, inside)
    values = tl.fma(centred, scale, tl.load(bias + channels, inside))
    if skip is not None:
        values += tl.load(skip + offsets, mask).to(scale.dtype)
    if RELU:
        values = tl.where(values <= 0, 0.0, values)  # a maximum would turn NaN into 0
    tl.store(z + offsets, values, mask)


@triton.jit
def _gradient_tile(dz, x, z, offsets, mask, mean, scale, bias, RELU: constexpr):
    """x − mean, and the gradient before the ReLU: 0 where the output, as it was rounded, is 0."""
    centred = tl.load(x + offsets, mask, 0.0).to(scale.dtype) - mean
    gradient = tl.load(dz + offsets, mask, 0.0).to(scale.dtype)
    if RELU:
        if z is None:  # without a skip, the output is found again by the operations of the forward pass
            output = tl.fma(centred, scale, bias).to(x.dtype.element_ty)
        else:
            output = tl.load(z + offsets, mask, 0.0)
        gradient = tl.where(output.to(scale.dtype) <= 0, 0.0, gradient)
    return centred, gradient


@triton.jit(do_not_specialize=["steps"])
def _sums_kernel(
    dz, x, z, mean, rstd, weight, bias, partial, M, RELU: constexpr,
    C, ROWS: constexpr, COLUMNS: constexpr, EVEN: constexpr, steps,
):  # fmt: skip
    """Each group's sums of gradient·(x − mean)·rstd, and of the gradient."""
    column_tile, group, groups = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    channels, offsets, mask = _tile(group, column_tile, M, C, ROWS, COLUMNS, EVEN)
    inside = channels < C
    centre, deviation = tl.load(mean + channels, inside), tl.load(rstd + channels, inside)
    scale, shift = tl.load(weight + channels, inside) * deviation, tl.load(bias + channels, inside)
    products, gradients = tl.zeros([ROWS, COLUMNS], scale.dtype), tl.zeros([ROWS, COLUMNS], scale.dtype)
    for step in tl.range(0, steps, loop_unroll_factor=2):
        channels, offsets, mask = _tile(group + step * groups, column_tile, M, C, ROWS, COLUMNS, EVEN)
        centred, gradient = _gradient_tile(dz, x, z, offsets, mask, centre, scale, shift, RELU)
        products += gradient * centred
        gradients += gradient
    products = tl.sum(products, 0, keep_dims=True) * deviation
    tl.store(partial + group * C + channels, products, channels < C)
    tl.store(partial + (groups + group) * C + channels, tl.sum(gradients, 0, keep_dims=True), channels < C)


@triton.jit
def _totals_kernel(partial, dweight, dbias, groups, C, COLUMNS: constexpr, GROUPS: constexpr):
    """The groups' sums, added up."""
    channels, offsets, mask = _tile(0, tl.program_id(0), groups, C, GROUPS, COLUMNS, False)
    products = tl.load(partial + offsets, mask, 0.0)
    gradients = tl.load(partial + groups * C + offsets, mask, 0.0)
    tl.store(dweight + channels, tl.sum(products, 0, keep_dims=True), channels < C)
    tl.store(dbias + channels, tl.sum(gradients, 0, keep_dims=True), channels < C)


@triton.jit
def _gradient_kernel(
    dz, x, z, mean, rstd, weight, bias, dweight, dbias, dx, dskip, weights, PIXELS, M, RELU: constexpr,
    C, ROWS: constexpr, COLUMNS: constexpr, EVEN: constexpr,
):  # fmt: skip
    """dx = weight·rstd·(gradient − dbias·w − (x − mean)·rstd·dweight·w), and dskip = gradient.

    w, how much a row counts, is 1/M for all, or its image's weight over its pixels.
    """
    channels, offsets, mask = _own_tile(M, C, ROWS, COLUMNS, EVEN)
    inside = channels < C
    centre, deviation = tl.load(mean + channels, inside), tl.load(rstd + channels, inside)
    scale, shift = tl.load(weight + channels, inside) * deviation, tl.load(bias + channels, inside)
    centred, gradient = _gradient_tile(dz, x, z, offsets, mask, centre, scale, shift, RELU)
    if dskip is not None:
        tl.store(dskip + offsets, gradient, mask)
    level, slope = tl.load(dbias + channels, inside), tl.load(dweight + channels, inside) * deviation
    if weights is None:
        gradient = gradient - level / M - centred * (slope / M)
    else:
        row_tile = tl.cdiv(M, ROWS) - 1 - tl.program_id(0) // tl.cdiv(C, COLUMNS)
        share = _row_weights(weights, row_tile, M, PIXELS, ROWS, scale.dtype)
        gradient = gradient - (level + centred * slope) * share
    tl.store(dx + offsets, gradient * scale, mask)


class _Plan:
    """How a matrix is cut: into tiles of so many elements that each thread loads 16 bytes a few times."""

    def __init__(self, x: Tensor) -> None:
        self.M, self.C = x.numel() // x.shape[1], x.shape[1]
        self.images, self.pixels = x.shape[0], x.shape[2] * x.shape[3]
        self.columns = min(triton.next_power_of_2(self.C), 64)
        self.column_tiles, self.rows = triton.cdiv(self.C, self.columns), 2048 // self.columns
        tiles = triton.cdiv(self.M, self.rows)
        self.steps = triton.cdiv(tiles, max(1, _PROGRAMS // self.column_tiles))
        self.groups = triton.cdiv(tiles, self.steps)

    def _tiles(self, rows: int, padded: int) -> dict[str, int]:
        even = padded * self.column_tiles * self.columns == self.M * self.C
        return {"M": self.M, "C": self.C, "ROWS": rows, "COLUMNS": self.columns, "EVEN": even}

    def by_group(self, kernel: Any, *tensors: Tensor | None, **flags: int) -> None:
        tiles = self._tiles(self.rows, self.rows * self.steps * self.groups)
        kernel[self.column_tiles, self.groups](*tensors, **tiles, steps=self.steps, **flags, num_warps=8)

    def over_groups(self, kernel: Any, *tensors: Tensor | None, **numbers: int) -> None:
        constants = {"C": self.C, "COLUMNS": 8, "GROUPS": triton.next_power_of_2(_PROGRAMS)}
        kernel[(triton.cdiv(self.C, 8),)](*tensors, groups=self.groups, **constants, **numbers)

    def elementwise(self, kernel: Any, *tensors: Tensor | None, **flags: int) -> None:
        rows, row_tiles = 2 * self.rows, triton.cdiv(self.M, 2 * self.rows)
        kernel[(self.column_tiles * row_tiles,)](*tensors, **self._tiles(rows, rows * row_tiles), **flags)

    def statistics(
        self, x: Tensor, running_mean: Tensor, running_var: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Mean and 1/√(variance + ε) of each channel; they move the running ones."""
        mean, rstd = torch.empty_like(running_mean), torch.empty_like(running_mean)
        partial = running_mean.new_empty(3, self.groups, self.C)
        self.by_group(_moments_kernel, x, partial, weights, PIXELS=self.pixels)
        rows = {"M": self.M, "ROWS": self.rows, "steps": self.steps}
        images = {"PIXELS": self.pixels, "IMAGES": self.images, "PADDED": triton.next_power_of_2(self.images)}
        whole = (mean, rstd, running_mean, running_var)
        self.over_groups(_statistics_kernel, partial, *whole, weights, **rows, **images)
        return mean, rstd


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, running_mean: Tensor, running_var: Tensor, weight: Tensor, bias: Tensor,
        skip: Tensor | None, weights: Tensor | None, relu: bool, training: bool,
    ) -> Tensor:  # fmt: skip
        plan, z = _Plan(x), torch.empty_like(x)
        if training:
            mean, rstd = plan.statistics(x, running_mean, running_var, weights)
        else:
            mean, rstd = running_mean, torch.rsqrt(running_var + _EPSILON.value)
            weights = weight.new_zeros(plan.images)  # nothing flows through statistics that no image moves
        plan.elementwise(_normalise_kernel, x, skip, z, mean, rstd, weight, bias, RELU=relu, TRAINING=True)
        ctx.relu, ctx.skip = relu, skip is not None
        ctx.save_for_backward(x, z if relu and ctx.skip else None, mean, rstd, weight, bias, weights)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        dz = dz.contiguous(memory_format=torch.channels_last)
        *saved, weights = ctx.saved_tensors
        x, z, _, _, weight, bias = saved
        dx, dweight, dbias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)
        dskip = None if z is None else torch.empty_like(x)
        plan, inputs = _Plan(x), (dz, *saved)
        partial = weight.new_empty(2, plan.groups, plan.C)
        plan.by_group(_sums_kernel, *inputs, partial, RELU=ctx.relu)
        plan.over_groups(_totals_kernel, partial, dweight, dbias)
        outputs, weighing = (dweight, dbias, dx, dskip), {"PIXELS": plan.pixels}
        plan.elementwise(_gradient_kernel, *inputs, *outputs, weights, **weighing, RELU=ctx.relu)
        if ctx.skip and not ctx.relu:
            dskip = dz
        return dx, None, None, dweight, dbias, dskip, None, None, None


def batch_norm(
    x: Tensor, running_mean: Tensor, running_var: Tensor, weight: Tensor, bias: Tensor,
    *, training: bool, skip: Tensor | None = None, relu: bool = False, weights: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """``F.batch_norm``, plus ``skip``, through a ReLU; in float32 or wider, rounded once at the end.

    With ``weights``, in training, each image counts so much in the statistics; they sum to 1.
    """
    x = x.contiguous(memory_format=torch.channels_last)
    skip = None if skip is None else skip.contiguous(memory_format=torch.channels_last)
    channels = (running_mean, running_var, weight, bias)
    with torch.cuda.device_of(x):
        if training or torch.is_grad_enabled():
            z: Tensor = _BatchNorm.apply(x, *channels, skip, weights, relu, training)
        else:
            z = torch.empty_like(x)
            _Plan(x).elementwise(_normalise_kernel, x, skip, z, *channels, RELU=relu, TRAINING=False)
    return z
