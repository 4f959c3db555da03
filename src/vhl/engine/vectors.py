"""A model as two flat vectors, parameters and buffers, of which the module's tensors are views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_ALIGNMENT = 32  # elements: 128 bytes of float32, a GPU's memory transaction


@dataclass(frozen=True)
class Segment:
    """Where one tensor lies in a vector."""

    name: str
    shape: torch.Size
    offset: int

    def view(self, vector: Tensor) -> Tensor:
        """The tensor, as a view; convolution weights in channels-last order."""
        part = vector[self.offset : self.offset + self.shape.numel()]
        if len(self.shape) == 4:
            outputs, inputs, height, width = self.shape
            return part.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
        return part.view(self.shape)


class Layout:
    """Where each named tensor of a module lies in its two vectors."""

    def __init__(self, module: nn.Module) -> None:
        parameters, saved = dict(module.named_parameters()), module.state_dict()
        self.parameters = _segments({name: p for name, p in parameters.items() if p.requires_grad})
        # A frozen parameter is a buffer here: neither weight decay nor an algorithm may move it.
        frozen = {name: p for name, p in parameters.items() if not p.requires_grad}
        floating = {name: b for name, b in module.named_buffers() if b.is_floating_point() and name in saved}
        self.buffers = _segments({**frozen, **floating})

    @property
    def parameter_count(self) -> int:
        return sum(segment.shape.numel() for segment in self.parameters)

    @property
    def buffer_count(self) -> int:
        return sum(segment.shape.numel() for segment in self.buffers)

    def pack(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Two vectors from named tensors (in the type and on the device of the first floating-point one)."""
        return _pack(self.parameters, tensors), _pack(self.buffers, tensors)

    def unpack(self, parameters: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        """Named tensors from two vectors: contiguous copies on the CPU, ready to be saved."""
        pairs = ((self.parameters, parameters), (self.buffers, buffers))
        return {s.name: s.view(v).to("cpu", copy=True).contiguous() for part, v in pairs for s in part}


def _segments(tensors: Mapping[str, Tensor]) -> list[Segment]:
    segments, offset = [], 0
    for name, tensor in tensors.items():
        segments.append(Segment(name, tensor.shape, offset))
        offset += -(-tensor.numel() // _ALIGNMENT) * _ALIGNMENT
    return segments


def _pack(segments: list[Segment], tensors: Mapping[str, Tensor]) -> Tensor:
    like = next(tensor for tensor in tensors.values() if tensor.is_floating_point())
    last = segments[-1] if segments else None
    length = last.offset + -(-last.shape.numel() // _ALIGNMENT) * _ALIGNMENT if last else 0
    vector = like.new_zeros(length)
    for segment in segments:
        segment.view(vector).copy_(tensors[segment.name])
    return vector


class FlatModel:
    """A module bound to vectors of its own: to load a model is to copy two vectors."""

    def __init__(self, module: nn.Module, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        self.module = module.to(device=device, dtype=dtype)
        self.layout = Layout(self.module)
        self.parameters, self.buffers = self.layout.pack(self.module.state_dict())
        self.gradient = torch.zeros_like(self.parameters)
        self._gradients = [segment.view(self.gradient) for segment in self.layout.parameters]
        named = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        self._leaves = [named[segment.name] for segment in self.layout.parameters]
        for segment in self.layout.parameters:
            named[segment.name].data = segment.view(self.parameters)
        for segment in self.layout.buffers:
            named[segment.name].data = segment.view(self.buffers)

    def load(self, parameters: Tensor, buffers: Tensor) -> None:
        self.parameters.copy_(parameters)
        self.buffers.copy_(buffers)

    def differentiate(self, loss: Tensor) -> None:
        """Put the gradient of ``loss`` into :attr:`gradient`.

        Not by ``backward()``: this way nothing is accumulated onto zeros and no one can cut the views.
        """
        gradients = torch.autograd.grad(loss, self._leaves, materialize_grads=True)
        torch._foreach_copy_(self._gradients, list(gradients))
