"""Models in files: what to start from, and what to hand on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from vhl.errors import VHLError


def head_names(build: Callable[[int], nn.Module]) -> tuple[str, ...]:
    """The classifier's tensors: those whose shape changes with the number of classes.

    So a user's own network needs no convention about what its classifier is called.
    """
    two, three = build(2).state_dict(), build(3).state_dict()
    return tuple(name for name in two if two[name].shape != three[name].shape)


def read_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file and its metadata."""
    try:
        with safe_open(file, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata() or {}  # noqa: SIM118
    except (FileNotFoundError, SafetensorError, OSError) as error:
        raise VHLError(
            f"{file} is no readable safetensors file ({error}); `vhl export RUN` writes one."
        ) from None


def load_start(module: nn.Module, file: Path, head: tuple[str, ...]) -> None:
    """Start from saved tensors; a classifier of another width stays as freshly initialised."""
    saved, _ = read_tensors(file)
    own = module.state_dict()
    for name, tensor in own.items():
        if name in saved and saved[name].shape == tensor.shape:
            tensor.copy_(saved[name])
        elif name not in head:
            found = tuple(saved[name].shape) if name in saved else "no such tensor"
            raise VHLError(
                f"model.start = {str(file)!r} does not fit: the network has {name} {tuple(tensor.shape)}, "
                f"the file {found}; choose the model that the file was made with."
            )


def cut_head(
    tensors: Mapping[str, Tensor], head: tuple[str, ...], build: Callable[[int], nn.Module], classes: int
) -> dict[str, Tensor]:
    """The tensors without virtual outputs: the first rows of the classifier are the natural classes."""
    with torch.device("meta"):
        wanted = {name: tensor.shape for name, tensor in build(classes).state_dict().items()}
    cut = dict(tensors)
    for name in head:
        cut[name] = tensors[name][tuple(slice(size) for size in wanted[name])].contiguous()
    return cut
