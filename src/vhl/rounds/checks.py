"""What is refused before a run begins, and what its user should read first."""

from __future__ import annotations

from collections import Counter

from torch import nn

from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.models.blueprint import Blueprint
from vhl.models.layers.network import Network
from vhl.models.layers.norm import BatchNorm
from vhl.objectives.virtual_batch import VirtualBatch
from vhl.rounds.datasheet import DataSheet


def check_network(experiment: Experiment, blueprint: Blueprint) -> None:
    """Refuse a network that cannot do what the objective asks of it."""
    objective, features = experiment.objective, blueprint.known.features
    for tap in objective.taps():
        if tap not in features:
            raise VHLError(
                f"objective.tap = {tap!r}: {experiment.model.name} has the taps {', '.join(features)}."
            )
    virtual = objective.virtual_images(experiment.training.batch_size)
    if virtual is not None and virtual.tiles > 1:
        _check_mosaic(experiment, blueprint, virtual)
    if virtual is not None and virtual.share is not None:
        _check_share(experiment.model.name, blueprint.known.module)


def _check_mosaic(experiment: Experiment, blueprint: Blueprint, virtual: VirtualBatch) -> None:
    """Tiles must divide images and all maps of them."""
    module, name, size = blueprint.known.module, experiment.model.name, blueprint.size
    tiles = virtual.tiles
    if not isinstance(module, Network):
        raise VHLError(
            f"objective.mosaic = {tiles} needs a network that shows its last map, and {name} does not; set "
            "objective.mosaic=1, or take objective=vhl."
        )
    if set(experiment.objective.taps()) != {"last"}:
        raise VHLError("objective.mosaic gives tiles features of the last tap alone; set objective.tap=last.")
    virtual.shape((*size, 1))
    for stage in range(1, len(module.stages) + 1):
        height, width = blueprint.known.features[f"stage{stage}"].shape[2:]
        if height % tiles or width % tiles:  # a pixel there would belong to two tiles
            raise VHLError(
                f"objective.mosaic = {tiles} must divide {name}'s maps, but that of stage {stage} is "
                f"{height}×{width} for images of {size[0]}×{size[1]}; choose another size of images, or "
                "objective.mosaic=1."
            )
    if virtual.rows % tiles**2:
        raise VHLError(
            f"objective.mosaic = {tiles}: {virtual.rows} virtual images a step do not fill mosaics of "
            f"{tiles**2} each; change objective.virtual_batch."
        )


def _check_share(name: str, module: nn.Module) -> None:
    """Layers that count all images alike would leave a share without effect."""
    for layer_name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise VHLError(
                f"objective.batch_norm_share: {layer_name} of {name} is a layer of PyTorch's own, "
                "which counts all images alike; set objective.batch_norm_share=unset."
            )


def notes(experiment: Experiment, data: DataSheet, blueprint: Blueprint) -> list[str]:
    """Sentences a user should read before training."""
    found = [*data.remarks, *experiment.algorithm.notes(experiment.training)]
    virtual = experiment.objective.virtual_images(experiment.training.batch_size)
    virtual_classes, classes = experiment.virtual.classes or len(data.classes), len(data.classes)
    if virtual is not None and virtual_classes != classes:
        found.append(
            f"{virtual_classes} virtual and {classes} natural classes: a class that exists on "
            "one side only is not calibrated."
        )
    found += [] if virtual is None else _mosaic_notes(experiment, virtual)
    found += _batch_norm_notes(experiment, blueprint.known.module, virtual)
    return found + _class_notes(data) + _training_notes(experiment, data)


def _mosaic_notes(experiment: Experiment, virtual: VirtualBatch) -> list[str]:
    """What is set for mosaics where there are none, and what becomes of nothing in tiles so small."""
    if virtual.tiles == 1 and virtual.one_class:
        return ["objective.mosaic_classes = same changes nothing without mosaics: set objective.mosaic."]
    pixels = {"crop": experiment.virtual.crop, "cutout": experiment.virtual.cutout}
    return [
        f"virtual.{option} = {own} is of a whole mosaic: less than a pixel of a tile, so it does nothing."
        for option, own in pixels.items()
        if 0 < (own or 0) < virtual.tiles
    ]


def _batch_norm_notes(experiment: Experiment, module: nn.Module, virtual: VirtualBatch | None) -> list[str]:
    """What is set for batch norm where there is none, or where it is fixed from the start."""
    layers = BatchNorm | nn.modules.batchnorm._BatchNorm
    share = None if virtual is None else virtual.share
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


def _class_notes(data: DataSheet) -> list[str]:
    found, spelt = [], Counter(name.casefold() for name in data.classes)
    twins = [name for name in data.classes if spelt[name.casefold()] > 1]
    if twins:
        found.append(f"Classes {', '.join(twins)} differ in capitals alone, and count as different.")
    held_by_nobody = [n for n, count in zip(data.classes, data.counts.sum(0), strict=True) if not count]
    if held_by_nobody:
        found.append(f"No client holds a training image of class {', '.join(held_by_nobody)}.")
    return found


def _training_notes(experiment: Experiment, data: DataSheet) -> list[str]:
    training, partition, rounds = experiment.training, experiment.partition.name, experiment.rounds
    found = [
        f"training.{option} = {after} is never reached in {rounds} rounds."
        for option, after in training.not_reached(rounds).items()
    ]
    if partition == "centralized" and training.momentum and not training.keep_momentum:
        found.append("Momentum restarts every round; training.keep_momentum=true is ordinary training.")
    if data.sites and partition != "given" and not data.deployment:  # deployed, clients are the sites
        found.append(f"The data name {len(data.sites)} sites; partition=given makes them the clients.")
    return found
