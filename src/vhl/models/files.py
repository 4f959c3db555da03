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
    fill(module, read_tensors(file)[0], f"model.start = {str(file)!r}", head)


def fill(module: nn.Module, saved: Mapping[str, Tensor], where: str, head: tuple[str, ...] = ()) -> None:
    """Copy saved tensors into a network; all must fit, but those of ``head``, which then stay as they are.

    Only floating-point tensors count: a model is what can be averaged, not PyTorch's batch counters.
    """
    own = module.state_dict()
    for name in [*own, *(saved.keys() - own.keys())]:
        ours, theirs = own.get(name), saved.get(name)
        if ours is not None and theirs is not None and ours.shape == theirs.shape:
            ours.copy_(theirs)
        elif name not in head and any(t is not None and t.is_floating_point() for t in (ours, theirs)):
            shapes = ["absent" if t is None else tuple(t.shape) for t in (ours, theirs)]
            raise VHLError(
                f"{where} does not fit: {name} is {shapes[0]} in the network and {shapes[1]} in the file; "
                "choose the model that the file was made with."
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
