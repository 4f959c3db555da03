"""The theorem's terms for the models that a run kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vhl.analysis.margin import Samples
from vhl.analysis.theory import Terms, measure
from vhl.data.images import ImageSet
from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.files import read_json, write_json
from vhl.models.blueprint import is_linear
from vhl.models.vectors import FlatModel
from vhl.rounds.local import local
from vhl.rounds.looking import look
from vhl.rounds.setup import Setup
from vhl.runs.folder import RunFolder
from vhl.runs.model import kept_rounds, saved_tensors
from vhl.training.streams import Stream
from vhl.virtual.base import Workplace
from vhl.virtual.sets import virtual_set

LIMIT = 500
"""Samples of a class, from each set: transport takes the cube of it."""


def measure_run(
    run: RunFolder,
    rounds: Sequence[int] | None = None,
    against: Experiment | None = None,
    data_dir: Path | None = None,
) -> dict[int, Terms]:
    """The terms by round, of all kept models and the last unless ``rounds`` says which.

    They are added to ``theory.json`` in the run's folder. A run that was trained without virtual data
    needs another experiment, whose virtual data it is measured ``against``.
    """
    experiment = run.experiment().with_(device="auto", engine={"precision": "fp32"})
    against = against or (experiment if experiment.objective.uses_virtual else None)
    if against is None:
        raise VHLError(
            f"{run.path} was trained without virtual data: --virtual noise measures against some, --virtual "
            "RUN against those of another run."
        )
    wanted = _which(run, rounds)
    setup = local(experiment, data_dir).setup
    assert setup.test is not None
    sets = [setup.test, *_virtual_streams(setup, against)]
    model = setup.model()
    found = {}
    for number, which in wanted.items():
        tensors = saved_tensors(run, which, model.layout)
        model.load(*(vector.to(setup.precision.device) for vector in model.layout.pack(tensors)))
        head = setup.blueprint.linear_head(tensors)
        natural, train, held_out = (_look(setup, model, stream, head) for stream in sets)
        found[number] = measure(natural, held_out, train, head, setup.classes, limit=LIMIT)
    _write(run, against, found)
    return found


def _which(run: RunFolder, rounds: Sequence[int] | None) -> dict[int, str]:
    """Models by round: kept ones have their number, the last is called so."""
    last = run.rounds
    kept = {number: str(number) for number in kept_rounds(run) if number <= last}
    if rounds is None:
        return dict(sorted({**kept, last: "last"}.items()))
    return {number: "last" if number == last else str(number) for number in rounds}


def _virtual_streams(setup: Setup, against: Experiment) -> tuple[Stream, Stream]:
    """Virtual images as in training, and held-out ones; not augmented, and no more than are looked at."""
    generator, classes, seed = against.virtual, setup.classes, against.seeds.data
    directory = setup.directory
    trained_on = setup.virtual_classes if setup.blueprint.outputs > classes else classes
    for virtual_classes in (trained_on, generator.classes or classes):
        if virtual_classes != classes:
            raise VHLError(
                f"The theorem speaks of as many virtual classes as natural ones: {virtual_classes} are not "
                f"{classes}; train with virtual.classes unset."
            )
    batch = against.objective.virtual_images(against.training.batch_size)
    shape = setup.data.shape if batch is None else batch.shape(setup.data.shape)
    place = Workplace(setup.precision.device, directory)
    train = virtual_set(generator, classes, shape, seed, directory, setup.precision.device)
    count = min(LIMIT, generator.count_per_class(classes))
    held_out = generator.held_out(classes, count, shape, seed, place)
    statistics = generator.statistics(train.images)
    dtype = setup.precision.dtype
    first, second = (
        Stream(images, generator, statistics, setup.precision.device, augment=False, dtype=dtype)
        for images in (_at_most(train), held_out)
    )
    return first, second


def _at_most(images: ImageSet) -> ImageSet:
    """The first of each class."""
    chosen = np.concatenate([np.flatnonzero(images.labels == c)[:LIMIT] for c in np.unique(images.labels)])
    return ImageSet(images.images[chosen], images.labels[chosen])


def _look(setup: Setup, model: FlatModel, stream: Stream, head: tuple[Tensor, Tensor]) -> Samples:
    everything = torch.arange(len(stream), device=setup.precision.device)
    seen = look(model, stream, everything, setup.precision)
    if not is_linear(seen["features"], seen["logits"], head):
        raise VHLError(
            f"The theorem speaks of a linear classifier on the features 'last'; that of "
            f"{setup.experiment.model.name} is none."
        )
    return seen["features"], seen["labels"]


def _write(run: RunFolder, against: Experiment, found: dict[int, Terms]) -> None:
    """Beside what was measured before against the same virtual data."""
    file = run.path / "theory.json"
    batch = against.objective.virtual_images(against.training.batch_size)
    virtual = {
        "virtual": against.virtual.model_dump(mode="json"),
        "seed": against.seeds.data,
        "tiles": 1 if batch is None else batch.tiles,
    }
    before = read_json(file) if file.is_file() else {}
    same = {key: before.get(key) for key in virtual} == virtual
    terms = {row["round"]: row for row in before["terms"]} if same else {}
    for number, term in found.items():
        terms[number] = {"round": number, **asdict(term), "lower_bound": term.lower_bound}
    write_json(file, {**virtual, "terms": [terms[number] for number in sorted(terms)]})
