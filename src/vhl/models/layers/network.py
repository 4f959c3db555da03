"""The common shape of our networks: stem, stages, pool, head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from vhl.models.layers.norm import BatchNorm, GroupNorm

Norm = Literal["batch", "group"]
Init = Literal["torch", "he"]
"""Initial weights of convolutions with n inputs and m outputs to a kernel of k pixels.

``torch`` is PyTorch's own, of variance 1/(3nk); ``he`` is normal of variance 2/(mk) (He et al., 2015).
A normalised layer's output does not depend on its scale, but how far a step turns it does: by 1/scale².
"""


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
