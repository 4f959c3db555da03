"""The images of a site, and what it says of them."""

from __future__ import annotations

import re

import numpy as np

from vhl.config.registry import build
from vhl.data.images import Dataset
from vhl.data.sources.base import Source, data_directory
from vhl.data.sources.folder import Folder
from vhl.deploy.decoded import load_decoded
from vhl.deploy.settings import NodeSettings
from vhl.deploy.terms import Facts
from vhl.errors import VHLError
from vhl.experiment import Experiment

_PART = re.compile(r"part:(\d+)")


def describe(settings: NodeSettings, experiment: Experiment) -> Facts:
    """What the server has to know; sums of pixels only where mean and deviation are still open."""
    is_open = experiment.data.mean is None or experiment.data.std is None
    return Facts.of(settings.name, read_data(settings, experiment), sums=is_open)


def read_data(settings: NodeSettings, experiment: Experiment) -> Dataset:
    """A site's own images, with what the experiment says of size, held-out shares and the like."""
    if part := _PART.fullmatch(settings.data):
        return _part(experiment, int(part[1]))
    own = build(Source, "data", settings.data)
    common = set(type(own).model_fields) & set(type(experiment.data).model_fields) - {"name", "path"}
    laid_over = {key: value for key in common if (value := getattr(experiment.data, key)) is not None}
    own, seed = own.model_copy(update=laid_over), experiment.seeds.data
    if isinstance(own, Folder):
        return load_decoded(own, seed, settings.store)
    return own.load(settings.store, seed, whole=False)


def _part(experiment: Experiment, part: int) -> Dataset:
    """For trials: the training images of one of the experiment's clients, and a share of the others."""
    dataset = experiment.data.load(data_directory(), experiment.seeds.data)
    parts = experiment.partition.assign(dataset, experiment.seeds.data)
    if part >= len(parts):
        raise VHLError(f"data = part:{part}, but the partition has {len(parts)} parts, from 0.")
    test, validation = (
        None if images is None else images.take(np.arange(part, len(images), len(parts)))
        for images in (dataset.test, dataset.validation)
    )
    assert test is not None
    return Dataset(dataset.train.take(parts[part]), test, dataset.classes, validation=validation)
