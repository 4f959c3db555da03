"""CIFAR-style residual networks (He et al., CVPR 2016)."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor, nn

from vhl.models.base import Model
from vhl.models.layers.network import Init, Layers, Network, Norm


class _Block(nn.Module):
    """Two 3×3 convolutions, or with ``bottleneck`` 1×1, 3×3 and 1×1 at a quarter of the width."""

    def __init__(self, inputs: int, outputs: int, stride: int, bottleneck: bool, make: Layers) -> None:
        super().__init__()
        inner = outputs // 4 if bottleneck else outputs
        shapes = [(inputs, inner, 1, 1), (inner, inner, 3, stride), (inner, outputs, 1, 1)]
        if not bottleneck:
            shapes = [(inputs, inner, 3, stride), (inner, outputs, 3, 1)]
        *first, last = shapes
        layers: list[nn.Module] = []
        for from_, to, kernel, step in first:
            layers += [make.convolution(from_, to, kernel, step), make.normalization(to, relu=True)]
        self.residual = nn.Sequential(*layers, make.convolution(*last))
        self.norm = make.normalization(outputs, relu=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                make.convolution(inputs, outputs, 1, stride), make.normalization(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.residual(x), self.shortcut(x))
        return out


class _ResNet(Model):
    blocks: ClassVar[tuple[int, ...]]
    bottleneck: ClassVar[bool] = False

    width: int = Field(64, ge=1, description="channels of the first stage; each later stage doubles them")
    norm: Norm = Field("batch", description="normalisation layer: batch or group")
    init: Init = Field(
        "torch", description="initial weights: PyTorch's own, as in the authors' code, or those of He et al."
    )

    def build(self, classes: int, channels: int, size: tuple[int, int]) -> nn.Module:
        make = Layers(self.norm, self.init)
        stem = nn.Sequential(
            make.convolution(channels, self.width, 3), make.normalization(self.width, relu=True)
        )
        stages: list[nn.Module] = []
        inputs, expansion = self.width, 4 if self.bottleneck else 1
        for number, count in enumerate(self.blocks):
            outputs = self.width * 2**number * expansion
            blocks = []
            for index in range(count):
                stride = 2 if number > 0 and index == 0 else 1
                blocks.append(_Block(inputs, outputs, stride, self.bottleneck, make))
                inputs = outputs
            stages.append(nn.Sequential(*blocks))
        return Network(stem, stages, inputs, classes)


class ResNet8(_ResNet):
    """FedDF's small network: three stages of one block, widths 16-32-64, 78 thousand parameters."""

    blocks = (1, 1, 1)
    width: int = Field(16, ge=1, description="channels of the first stage; each later stage doubles them")


class ResNet10(_ResNet):
    """Four stages of one block, widths 64 to 512: 4.9 million parameters."""

    blocks = (1, 1, 1, 1)


class ResNet18(_ResNet):
    """Four stages of two blocks, 11.2 million parameters: the paper's network."""

    blocks = (2, 2, 2, 2)


class ResNet34(_ResNet):
    """Four stages of 3, 4, 6 and 3 blocks: 21.3 million parameters."""

    blocks = (3, 4, 6, 3)


class ResNet50(_ResNet):
    """Four stages of 3, 4, 6 and 3 bottlenecks, 23.9 million parameters: the paper's for CIFAR-100."""

    blocks = (3, 4, 6, 3)
    bottleneck = True
