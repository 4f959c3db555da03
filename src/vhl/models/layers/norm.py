"""Normalisation layers, and what the engine may ask of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vhl.models.layers.weighted import weighted_batch_norm


class _Normalization(nn.Module):
    """A normalisation layer and what usually follows it: relu(norm(x) + skip)."""

    def __init__(self, relu: bool) -> None:
        super().__init__()
        self.relu = relu

    def forward(self, x: Tensor, skip: Tensor | None = None) -> Tensor:
        y = self.normalize(x)
        if skip is not None:
            y = y + skip
        return F.relu(y, inplace=True) if self.relu else y

    def normalize(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class BatchNorm(_Normalization):
    """Batch normalisation without PyTorch's integer batch counter: its state is floating point alone.

    So a model is two vectors, parameters and buffers, that can be averaged (Ioffe and Szegedy, 2015).
    """

    running_mean: Tensor
    running_var: Tensor
    fused = False
    """Whether one kernel of ours does all of it: on a GPU, where the engine says so."""
    sample_weights: Tensor | None = None
    """How much each image counts in the statistics of training, where they do not count the same."""

    def __init__(self, channels: int, relu: bool = False) -> None:
        super().__init__(relu)
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor, skip: Tensor | None = None) -> Tensor:
        if not self.fused:
            return super().forward(x, skip)
        from vhl.models.layers._kernels import batch_norm  # Triton is there on machines with a GPU alone

        state = (self.running_mean, self.running_var, self.weight, self.bias)
        weights = self.sample_weights if self.training else None
        return batch_norm(x, *state, training=self.training, skip=skip, relu=self.relu, weights=weights)

    def normalize(self, x: Tensor) -> Tensor:
        weights = self.sample_weights if self.training else None
        if self.training and weights is None and x.numel() == x.shape[1]:
            weights = x.new_ones(1)  # one value a channel has no deviation: PyTorch's own would refuse it
        if weights is not None:
            state = (self.running_mean, self.running_var, self.weight, self.bias)
            return weighted_batch_norm(x, weights, *state)
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, self.training)


class GroupNorm(_Normalization):
    """Group normalisation with 16 channels a group (Wu and He, 2018), or more where 16 do not fit."""

    def __init__(self, channels: int, relu: bool = False) -> None:
        super().__init__(relu)
        self.groups = next(n for n in range(max(1, channels // 16), 0, -1) if channels % n == 0)
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def normalize(self, x: Tensor) -> Tensor:
        return F.group_norm(x, self.groups, self.weight, self.bias)


def fuse(module: nn.Module) -> None:
    """Let batch normalisation run as kernels of ours."""
    for layer in module.modules():
        if isinstance(layer, BatchNorm):
            layer.fused = True


def freeze_statistics(module: nn.Module) -> None:
    """Normalise by running statistics from now on, and leave them as they are."""
    for layer in module.modules():
        if isinstance(layer, BatchNorm | nn.modules.batchnorm._BatchNorm):
            layer.eval()


@contextmanager
def weighted_statistics(module: nn.Module, weights: Tensor | None) -> Iterator[None]:
    """Let images count so much in batch-norm statistics for as long as this lasts."""
    layers = [layer for layer in module.modules() if isinstance(layer, BatchNorm)]
    for layer in layers:
        layer.sample_weights = weights
    try:
        yield
    finally:
        for layer in layers:
            layer.sample_weights = None


def can_weigh(module: nn.Module) -> bool:
    """Whether images can count differently in all its batch norms: PyTorch's own count all alike."""
    return not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules())
