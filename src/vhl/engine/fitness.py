"""Whether a network can do what an objective's mosaics and shares ask of it."""

from __future__ import annotations

from collections.abc import Mapping

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
            f"{last_map[0]}×{last_map[1]}; choose another."
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


def share_notes(experiment: Experiment, module: nn.Module) -> list[str]:
    share = getattr(experiment.objective, "batch_norm_share", None)
    if share is None or any(isinstance(layer, BatchNorm) for layer in module.modules()):
        return []
    return [f"{experiment.model.name} has no batch norm here: objective.batch_norm_share changes nothing."]
