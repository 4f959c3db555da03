"""Batch normalisation in which images count differently."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

MOMENTUM, EPSILON = 0.1, 1e-5  # PyTorch's own


def weighted_batch_norm(
    x: Tensor, weights: Tensor, running_mean: Tensor, running_var: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    """Batch normalisation in training, where image n counts w_n in the statistics and Σ w_n = 1.

    μ = Σ w_n μ_n and σ² = Σ w_n (σ_n² + (μ_n − μ)²), with mean μ_n and variance σ_n² over the pixels of image
    n. The running variance gets σ² · k/(k − 1), k the number of pixels in images that count at all.
    Weights of 1/N are the ordinary layer; a weight of 0 is as if the image were not there.
    """
    with torch.no_grad():
        weights = weights.to(torch.promote_types(x.dtype, torch.float32))
        shares, means, variances = _groups(x, weights) if x.device.type == "cpu" else _images(x, weights)
        mean = (shares * means).sum(0)  # no matrix product: autocast would round it
        variance = (shares * (variances + (means - mean) ** 2)).sum(0)
        count = (weights != 0).sum() * (x.shape[2] * x.shape[3])
        running_mean.lerp_(mean.to(running_mean.dtype), MOMENTUM)
        running_var.lerp_((variance * count / (count - 1).clamp(min=1)).to(running_var.dtype), MOMENTUM)
    normalised: Tensor = _Normalize.apply(x, weights, mean, variance, weight, bias)  # type: ignore[no-untyped-call]
    return normalised


def _images(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each image: its weight, and mean and variance of each channel."""
    variances, means = torch.var_mean(x.to(weights.dtype), (2, 3), correction=0)
    return weights[:, None], means, variances


def _groups(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same of neighbours that weigh the same, together: a CPU has a fast operation for many images."""
    found, start = [], 0
    values, counts = torch.unique_consecutive(weights, return_counts=True)
    for value, count in zip(values, counts.tolist(), strict=True):
        if value != 0:
            mean, variance = weights.new_zeros(2, x.shape[1])  # whose type is that of the result
            statistics = torch.batch_norm_update_stats(x[start : start + count], mean, variance, MOMENTUM)
            found.append((value * count, *statistics))
        start += count
    shares, means, variances = (torch.stack(column) for column in zip(*found, strict=True))
    return shares[:, None], means, variances


class _Normalize(torch.autograd.Function):
    """γ (x − μ)/√(σ² + ε) + β, where gradients flow through μ and σ² of the weighted images too."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weights: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x, weights, mean, variance, weight)
        return F.batch_norm(x, mean, variance, weight, bias, eps=EPSILON)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        """What goes through μ and σ² is linear in x: image n gets w_n/P (∂μ + 2 (x − μ) ∂σ²) at P pixels."""
        x, weights, mean, variance, weight = ctx.saved_tensors
        rstd = torch.rsqrt(variance + EPSILON)
        dx, dweight, dbias = torch.ops.aten.native_batch_norm_backward(
            dz, x, weight, mean, variance, mean, rstd, False, EPSILON, [True, True, True]
        )
        slope = -weight * dweight * rstd**2  # 2 ∂σ²
        offset = -weight * dbias * rstd - slope * mean  # ∂μ − 2 μ ∂σ²
        each = weights[:, None] / (x.shape[2] * x.shape[3])
        wide = dx.to(each.dtype)  # the two parts nearly cancel where x is far from 0
        wide.addcmul_(x, (each * slope)[..., None, None]).add_((each * offset)[..., None, None])
        return wide.to(x.dtype), None, None, None, dweight, dbias
