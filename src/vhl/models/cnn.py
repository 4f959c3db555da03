"""A small convolutional network."""

from __future__ import annotations

from pydantic import Field
from torch import nn

from vhl.models.base import Model
from vhl.models.layers.network import Layers, Network, Norm


class CNN(Model):
    """Three 3×3 convolutions with pooling between them: quick on a CPU."""

    width: int = Field(32, ge=1, description="channels of the first convolution; each later one doubles them")
    norm: Norm = Field("batch", description="normalisation layer: batch or group")

    def build(self, classes: int, channels: int, size: tuple[int, int]) -> nn.Module:
        make = Layers(self.norm, "he")
        widths = (self.width, 2 * self.width, 4 * self.width)
        stages: list[nn.Module] = []
        for number, (inputs, outputs) in enumerate(zip((channels, *widths), widths, strict=False)):
            layers = [make.convolution(inputs, outputs, 3), make.normalization(outputs, relu=True)]
            stages.append(nn.Sequential(*([nn.MaxPool2d(2, ceil_mode=True)] if number else []), *layers))
        return Network(nn.Identity(), stages, widths[-1], classes)
