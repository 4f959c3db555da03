"""Whether a network can do what objectives and algorithms ask of it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.models._network import BatchNorm, Network


def check_mosaic(
    experiment: Experiment, module: nn.Module, size: tuple[int, int], features: Mapping[str, Tensor]
) -> None:
    """Tiles must divide images and the last map; ``features`` are those of one image, by tap."""
    objective, name = experiment.objective, experiment.model.name
    tiles, rows = objective.tiles, objective.virtual_rows(experiment.training.batch_size)
    if tiles == 1:
        return
    if not isinstance(module, Network):
        raise VHLError(f"objective.mosaic needs a network that shows its last map, and {name} does not.")
    if getattr(objective, "tap", "last") != "last":
        raise VHLError("objective.mosaic gives tiles features of the last tap alone; set objective.tap=last.")
    last_map = features[f"stage{len(module.stages)}"].shape[2:]
    if any(side % tiles for side in (*size, *last_map)):
        raise VHLError(
            f"objective.mosaic = {tiles} must divide images of {size[0]}×{size[1]} and {name}'s last map of "
            f"{last_map[0]}×{last_map[1]}; choose a size of images that it divides, or objective.mosaic=1."
        )
    if rows % tiles**2:
        raise VHLError(
            f"objective.mosaic = {tiles}: {rows} virtual images a step do not fill mosaics of {tiles**2} "
            "each; change objective.virtual_batch."
        )


def check_share(experiment: Experiment, module: nn.Module) -> None:
    if getattr(experiment.objective, "batch_norm_share", None) is None:
        return
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise VHLError(
                f"objective.batch_norm_share: {name} of {experiment.model.name} is a layer of PyTorch's own, "
                "which counts all images alike; leave the share unset."
            )


def is_linear(features: Tensor, logits: Tensor, head: tuple[Tensor, Tensor]) -> bool:
    """Whether logits are a linear classifier's of the features, but for rounding."""
    if features.dim() != 2 or features.shape[1] != head[0].shape[1] or len(head[1]) != logits.shape[1]:
        return False
    expected = features @ head[0].T + head[1]
    return torch.allclose(logits, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def mosaic_notes(experiment: Experiment) -> list[str]:
    """What is set for mosaics where there are none."""
    if experiment.objective.tiles > 1 or not experiment.objective.tiles_of_one_class:
        return []
    return ["objective.mosaic_classes = same changes nothing without mosaics: set objective.mosaic."]


def batch_norm_notes(experiment: Experiment, module: nn.Module) -> list[str]:
    """What is set for batch norm where there is none."""
    layers = BatchNorm | nn.modules.batchnorm._BatchNorm
    if any(isinstance(layer, layers) for layer in module.modules()):
        return []
    options = {
        "objective.batch_norm_share": getattr(experiment.objective, "batch_norm_share", None),
        "training.freeze_batch_norm": experiment.training.freeze_batch_norm,
    }
    return [
        f"{experiment.model.name} has no batch norm here: {option} changes nothing."
        for option, value in options.items()
        if value is not None
    ]
