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
    """Tiles must divide images and all maps of them; ``features`` are those of one image, by tap."""
    objective, name = experiment.objective, experiment.model.name
    tiles, rows = objective.tiles, objective.virtual_rows(experiment.training.batch_size)
    if tiles == 1:
        return
    if not isinstance(module, Network):
        raise VHLError(
            f"objective.mosaic = {tiles} needs a network that shows its last map, and {name} does not; set "
            "objective.mosaic=1, or take objective=vhl."
        )
    if getattr(objective, "tap", "last") != "last":
        raise VHLError("objective.mosaic gives tiles features of the last tap alone; set objective.tap=last.")
    objective.virtual_shape((*size, 1))
    for stage in range(1, len(module.stages) + 1):
        height, width = features[f"stage{stage}"].shape[2:]
        if height % tiles or width % tiles:  # a pixel there would belong to two tiles
            raise VHLError(
                f"objective.mosaic = {tiles} must divide {name}'s maps, but that of stage {stage} is "
                f"{height}×{width} for images of {size[0]}×{size[1]}; choose another size of images, or "
                "objective.mosaic=1."
            )
    if rows % tiles**2:
        raise VHLError(
            f"objective.mosaic = {tiles}: {rows} virtual images a step do not fill mosaics of {tiles**2} "
            "each; change objective.virtual_batch."
        )


def check_share(experiment: Experiment, module: nn.Module) -> None:
    """Layers that count all images alike would leave an objective's weights without effect."""
    if not experiment.objective.weighs_images:
        return
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise VHLError(
                f"objective.batch_norm_share: {name} of {experiment.model.name} is a layer of PyTorch's own, "
                "which counts all images alike; set objective.batch_norm_share=unset."
            )


def is_linear(features: Tensor, logits: Tensor, head: tuple[Tensor, Tensor]) -> bool:
    """Whether logits are a linear classifier's of the features, but for rounding."""
    if features.dim() != 2 or features.shape[1] != head[0].shape[1] or len(head[1]) != logits.shape[1]:
        return False
    expected = features @ head[0].T + head[1]
    return torch.allclose(logits, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def mosaic_notes(experiment: Experiment) -> list[str]:
    """What is set for mosaics where there are none, and what becomes of nothing in tiles so small."""
    tiles = experiment.objective.tiles
    if tiles == 1 and experiment.objective.tiles_of_one_class:
        return ["objective.mosaic_classes = same changes nothing without mosaics: set objective.mosaic."]
    return [
        f"virtual.{option} = {pixels} is of a whole mosaic: less than a pixel of a tile, so it does nothing."
        for option in ("crop", "cutout")
        if 0 < ((pixels := getattr(experiment.virtual, option)) or 0) < tiles
    ]


def batch_norm_notes(experiment: Experiment, module: nn.Module) -> list[str]:
    """What is set for batch norm where there is none, or where it is fixed from the start."""
    layers = BatchNorm | nn.modules.batchnorm._BatchNorm
    share = getattr(experiment.objective, "batch_norm_share", None)
    freeze = experiment.training.freeze_batch_norm
    if any(isinstance(layer, layers) for layer in module.modules()):
        fixed = "with training.freeze_batch_norm = 0 objective.batch_norm_share changes nothing."
        return [fixed] if freeze == 0 and share is not None else []
    options = {"objective.batch_norm_share": share, "training.freeze_batch_norm": freeze}
    return [
        f"{experiment.model.name} has no batch norm here: {option} changes nothing."
        for option, value in options.items()
        if value is not None
    ]
