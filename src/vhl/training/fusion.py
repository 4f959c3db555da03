"""Steps with fewer and larger operations: kernels of ours, or PyTorch's compiler."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vhl.algorithms.base import Algorithm, Client
from vhl.models._network import BatchNorm, fuse
from vhl.models.vectors import FlatModel
from vhl.training.compiler import compiled
from vhl.training.mosaic import assemble
from vhl.training.step import Draws, Pieces, Plan, named
from vhl.training.task import Task


def fused_pieces(plain: Pieces, task: Task) -> Pieces:
    """Images, batch normalisation and gradient descent by kernels of ours, which are there in seconds."""
    from vhl.training._kernels import make_images, sgd  # Triton is there on machines with a GPU alone

    def gather(plan: Plan, counter: Tensor) -> tuple[Tensor, Draws]:
        kinds = {"index": (task.natural, "natural.", "labels")}
        if task.virtual is not None and "virtual" in plan:
            kinds["virtual"] = (task.virtual, "virtual.", "virtual_labels")
        places = [plan[kind].shape[1] // stream.tiles**2 for kind, (stream, *_) in kinds.items()]
        shape = (sum(places), *task.natural.shape)
        images = torch.empty(shape, dtype=task.numerics.compute_dtype, device=counter.device)
        others = [name for name in plan if name == "weights" or name.startswith("draws.")]
        draws = {name: plan[name].index_select(0, counter)[0] for name in others}
        for place, (kind, (stream, prefix, labels)) in zip(images.split(places), kinds.items(), strict=True):
            rows = plan[kind].shape[1]
            small = place if stream.tiles == 1 else place.new_empty(rows, *stream.shape)
            draws[labels] = make_images(stream, counter, plan[kind], named(plan, prefix), small)
            if stream.tiles > 1:
                place.copy_(assemble(small, stream.tiles))
        return images.permute(0, 3, 1, 2), draws

    def update(model: FlatModel, momentum: Tensor, rate: Tensor, counter: Tensor, client: Client) -> None:
        training, algorithm = task.training, task.algorithm
        weights, gradient = model.parameters, model.gradient
        algorithm.correct_gradient(gradient, weights, client)
        factors = {"decay": training.weight_decay, "keep": training.momentum}
        sgd(weights, gradient, momentum, model.lowered, counter, rate, **factors)
        if type(algorithm).correct_weights is not Algorithm.correct_weights:
            algorithm.correct_weights(weights, rate, client)
            model.refresh()

    def network(module: torch.nn.Module) -> torch.nn.Module:
        fuse(module)
        return module

    return replace(plain, gather=gather, update=update, network=network)


def has_kernels(module: torch.nn.Module) -> bool:
    """Whether a network's layers are ours, with kernels of ours."""
    return any(isinstance(layer, BatchNorm) for layer in module.modules())


def compiled_pieces(pieces: Pieces) -> Pieces:
    """The objective, and a network that has no kernels of ours, through PyTorch's compiler."""
    return replace(
        pieces,
        judge=compiled(pieces.judge),
        network=lambda module: pieces.network(module) if has_kernels(module) else compiled(module),
    )
