"""Steps with fewer and larger operations: kernels of ours, or PyTorch's compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from vhl.algorithms.base import Algorithm, Client
from vhl.models.layers.norm import BatchNorm, fuse
from vhl.models.vectors import FlatModel
from vhl.training.compiler import compiled
from vhl.training.mosaics import assemble
from vhl.training.schedule import Schedule
from vhl.training.step import Output, Step, Values, named


class FusedStep(Step):
    """Images, batch normalisation and gradient descent by kernels of ours, which are there in seconds."""

    def network(self, module: nn.Module) -> Callable[..., Output]:
        fuse(module)
        return module

    def gather(self, schedule: Schedule, step: Tensor, rows: int | None) -> tuple[Tensor, Values]:
        from vhl.training._kernels import make_images  # Triton is there on machines with a GPU alone

        task = self.task
        kinds = {"index": (task.natural, "natural.", "labels")}
        if task.virtual is not None and "virtual" in schedule:
            kinds["virtual"] = (task.virtual, "virtual.", "virtual_labels")
        counts = {kind: schedule[kind].shape[1] for kind in kinds}
        counts["index"] = rows or counts["index"]
        places = [counts[kind] // stream.tiles**2 for kind, (stream, *_) in kinds.items()]
        shape = (sum(places), *task.natural.shape)
        images = torch.empty(shape, dtype=task.precision.compute_dtype, device=step.device)
        used = {"weights": schedule["weights"].index_select(0, step)[0, :rows]}
        for place, (kind, (stream, prefix, labels)) in zip(images.split(places), kinds.items(), strict=True):
            small = place if stream.tiles == 1 else place.new_empty(counts[kind], *stream.shape)
            used[labels] = make_images(stream, step, schedule[kind], named(schedule, prefix), small)
            if stream.tiles > 1:
                place.copy_(assemble(small, stream.tiles))
        return images.permute(0, 3, 1, 2), used

    def update(self, model: FlatModel, momentum: Tensor, rate: Tensor, step: Tensor, client: Client) -> None:
        from vhl.training._kernels import sgd

        training, algorithm = self.task.training, self.task.algorithm
        weights, gradient = model.parameters, model.gradient
        algorithm.correct_gradient(gradient, weights, client)
        factors = {"decay": training.weight_decay, "keep": training.momentum}
        sgd(weights, gradient, momentum, model.lowered, step, rate, **factors)
        if type(algorithm).correct_weights is not Algorithm.correct_weights:
            algorithm.correct_weights(weights, rate, client)
            model.refresh()


class CompiledStep(Step):
    """Another step, but the objective, and a network without kernels of ours, through PyTorch's compiler.

    A batch that is cut runs uncompiled: it would be compiled anew for every length that there is.
    """

    def __init__(self, step: Step) -> None:
        super().__init__(step.task)
        self._step, self._compiled_loss = step, compiled(step.loss)
        self.gather, self.update = step.gather, step.update  # type: ignore[method-assign]

    def network(self, module: nn.Module) -> Callable[..., Output]:
        called = self._step.network(module)
        if has_kernels(module):
            return called
        virtual, batch = self.task.virtual_batch, self.task.batch
        whole = {batch, batch + (0 if virtual is None else virtual.places)}  # references see natural ones
        fast = compiled(called)

        def call(images: Tensor, *mosaic: int) -> Output:
            return (fast if len(images) in whole else called)(images, *mosaic)

        return call

    def loss(
        self, features: Mapping[str, Tensor], logits: Tensor, used: Values, where: Tensor, step: Tensor
    ) -> tuple[Tensor, Values]:
        loss = self._compiled_loss if len(used["labels"]) == self.task.batch else self._step.loss
        return loss(features, logits, used, where, step)


def has_kernels(module: nn.Module) -> bool:
    """Whether a network's layers are ours, with kernels of ours."""
    return any(isinstance(layer, BatchNorm) for layer in module.modules())
