"""What a forward pass costs."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class MultiplyAdds:
    """Counts the multiply-adds of linear layers and convolutions in the forward passes of a ``with`` block.

    By hooks, because PyTorch's own counter loads its compiler, which takes seconds. What a network computes
    outside such layers is not counted; in networks for images it is next to nothing.
    """

    def __init__(self, module: nn.Module) -> None:
        self.total = 0
        self._layers = [m for m in module.modules() if isinstance(m, nn.Linear | nn.modules.conv._ConvNd)]

    def __enter__(self) -> MultiplyAdds:
        self._hooks = [layer.register_forward_hook(self._count) for layer in self._layers]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _count(self, layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        assert isinstance(layer.weight, Tensor)
        transposed = getattr(layer, "transposed", False)
        touched = inputs[0].numel() if transposed else output.numel()  # each of these meets weight[0] once
        self.total += touched * layer.weight[0].numel()
