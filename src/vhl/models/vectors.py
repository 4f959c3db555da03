"""A model as two flat vectors, parameters and buffers, of which the module's tensors are views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vhl.errors import VHLError
from vhl.models.layers.network import Network

_ALIGNMENT = 32  # elements: 128 bytes of float32, a GPU's memory transaction


@dataclass(frozen=True)
class Segment:
    """Where one tensor lies in a vector."""

    name: str
    shape: torch.Size
    offset: int

    def flat(self, vector: Tensor) -> Tensor:
        return vector[self.offset : self.offset + self.shape.numel()]

    def view(self, vector: Tensor) -> Tensor:
        """The tensor, as a view; convolution weights in channels-last order."""
        part = self.flat(vector)
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

    def views(self, parameters: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        """Named tensors that are views of two vectors."""
        pairs = ((self.parameters, parameters), (self.buffers, buffers))
        return {segment.name: segment.view(vector) for part, vector in pairs for segment in part}

    def unpack(self, parameters: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        """Named tensors from two vectors: contiguous copies on the CPU, ready to be saved."""
        views = self.views(parameters, buffers)
        return {name: view.to("cpu", copy=True).contiguous() for name, view in views.items()}


def _flat(tensor: Tensor) -> Tensor:
    """All elements in the order of a segment."""
    return (tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor).reshape(-1)


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
    """A module bound to vectors of its own: to load a model is to copy two vectors.

    ``lowered`` is a second, shorter type for the weights of our own networks' convolutions and linear layers:
    the layers see a copy in that type (:attr:`lowered`), which :meth:`refresh` makes of the parameters, so
    that no forward pass has to cast them one by one.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        lowered: torch.dtype | None = None,
    ) -> None:
        self.module = module.to(device=device, dtype=dtype)
        self.layout = Layout(self.module)
        self.parameters, self.buffers = self.layout.pack(self.module.state_dict())
        self.gradient = torch.zeros_like(self.parameters)
        names = _lowerable(self.module) if lowered not in (None, dtype) else set()
        self.lowered = torch.zeros_like(self.parameters, dtype=lowered) if names else None
        self._gradients = [segment.flat(self.gradient) for segment in self.layout.parameters]
        named = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        self._leaves = [named[segment.name] for segment in self.layout.parameters]
        for segment in self.layout.parameters:
            vector = self.lowered if self.lowered is not None and segment.name in names else self.parameters
            named[segment.name].data = segment.view(vector)
        for segment in self.layout.buffers:
            named[segment.name].data = segment.view(self.buffers)
        self.refresh()

    def load(self, parameters: Tensor, buffers: Tensor) -> None:
        self.parameters.copy_(parameters, non_blocking=True)
        self.buffers.copy_(buffers, non_blocking=True)
        self.refresh()

    def refresh(self) -> None:
        """Let the layers see what the parameters are now."""
        if self.lowered is not None:
            self.lowered.copy_(self.parameters)

    def differentiate(self, loss: Tensor) -> None:
        """Put the gradient of ``loss`` into :attr:`gradient`.

        Not by ``backward()``: this way nothing is accumulated onto zeros and no one can cut the views.
        """
        if not loss.requires_grad:
            raise VHLError("The objective's loss does not depend on the model: no term of it has a gradient.")
        gradients = torch.autograd.grad(loss, self._leaves, materialize_grads=True)
        pairs = list(zip(self._gradients, map(_flat, gradients), strict=True))
        for dtype in {gradient.dtype for gradient in gradients}:  # tensors of one type are copied in one go
            ours, theirs = zip(*[pair for pair in pairs if pair[1].dtype == dtype], strict=True)
            torch._foreach_copy_(list(ours), list(theirs))


def _lowerable(module: nn.Module) -> set[str]:
    """Parameters that a forward pass uses in the shorter type alone; of a foreign network we cannot know."""
    if not isinstance(module, Network):
        return set()
    layers = {name: m for name, m in module.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}
    return {f"{name}.{own}" for name, layer in layers.items() for own, _ in layer.named_parameters()}
