"""The common shape of our networks: stem, stages, pool, head; and their normalisation layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vhl.models._weighted import weighted_batch_norm

Norm = Literal["batch", "group"]
Init = Literal["torch", "he"]
"""Initial weights of convolutions with n inputs and m outputs to a kernel of k pixels.

``torch`` is PyTorch's own, of variance 1/(3nk); ``he`` is normal of variance 2/(mk) (He et al., 2015).
A normalised layer's output does not depend on its scale, but how far a step turns it does: by 1/scale².
"""


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
        from vhl.models._kernels import batch_norm  # Triton is there on machines with a GPU alone

        state = (self.running_mean, self.running_var, self.weight, self.bias)
        weights = self.sample_weights if self.training else None
        return batch_norm(x, *state, training=self.training, skip=skip, relu=self.relu, weights=weights)

    def normalize(self, x: Tensor) -> Tensor:
        if self.training and self.sample_weights is not None:
            state = (self.running_mean, self.running_var, self.weight, self.bias)
            return weighted_batch_norm(x, self.sample_weights, *state)
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


@dataclass(frozen=True)
class Layers:
    """How the layers of a network are made."""

    norm: Norm
    init: Init

    def normalization(self, channels: int, *, relu: bool = False) -> nn.Module:
        return BatchNorm(channels, relu) if self.norm == "batch" else GroupNorm(channels, relu)

    def convolution(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
        """Without bias: a normalisation follows."""
        layer = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
        if self.init == "he":
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        return layer


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


class Network(nn.Module):
    """Stem and stages make maps, the last map is pooled to a vector, the head turns it into logits."""

    def __init__(self, stem: nn.Module, stages: list[nn.Module], features: int, classes: int) -> None:
        super().__init__()
        self.stem = stem
        self.stages = nn.ModuleList(stages)
        self.head = nn.Linear(features, classes)

    def forward(
        self, images: Tensor, natural: int | None = None, tiles: int = 1
    ) -> tuple[dict[str, Tensor], Tensor]:
        """With ``tiles`` the images after the first ``natural`` are mosaics: m² features and logits each."""
        maps = self.maps(images)
        last_map = maps[f"stage{len(self.stages)}"]
        if tiles == 1:
            last = self.pool(last_map)
        else:
            last = torch.cat([self.pool(last_map[:natural]), self.pool(cut(last_map[natural:], tiles))])
        return {**maps, "last": last}, self.head(last)

    def maps(self, images: Tensor) -> dict[str, Tensor]:
        """The output of each stage, by tap."""
        maps, x = {}, self.stem(images)
        for number, stage in enumerate(self.stages, 1):
            maps[f"stage{number}"] = x = stage(x)
        return maps

    def pool(self, last_map: Tensor) -> Tensor:
        return last_map.mean((2, 3))


def cut(maps: Tensor, tiles: int) -> Tensor:
    """The tiles (N·m², C, H/m, W/m) of maps (N, C, H, W), row by row."""
    count, channels, height, width = maps.shape
    rows = maps.view(count, channels, tiles, height // tiles, tiles, width // tiles).permute(0, 2, 4, 1, 3, 5)
    return rows.reshape(-1, channels, height // tiles, width // tiles)
