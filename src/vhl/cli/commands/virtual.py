"""`vhl virtual`: the virtual set, to look at and to use elsewhere."""

from __future__ import annotations

import argparse
import io

import numpy as np

from vhl.cli import settings
from vhl.cli.display import console, making_images, percent
from vhl.data.sources.base import data_directory
from vhl.errors import VHLError
from vhl.files import write_bytes
from vhl.rounds.problem import choose_device
from vhl.virtual.inspection import picture, separability
from vhl.virtual.sets import virtual_set


def main(arguments: argparse.Namespace) -> None:
    grid = arguments.picture or arguments.output.with_suffix(".png")
    if grid == arguments.output:
        raise VHLError(f"The images and their picture cannot both go to {grid}; choose -o FILE.npz.")
    experiment = settings.read(arguments.settings)
    directory = data_directory(arguments.data_dir)
    dataset = experiment.data.load(directory, experiment.seeds.data)
    classes = experiment.virtual.classes or len(dataset.classes)
    images = virtual_set(
        experiment.virtual,
        classes,
        experiment.objective.virtual_shape(dataset.train.shape),
        experiment.seeds.data,
        directory,
        choose_device(experiment.device),
        making_images(),
    )
    packed, drawn = io.BytesIO(), io.BytesIO()
    np.savez_compressed(packed, images=images.images, labels=images.labels)
    picture(images, arguments.samples).save(drawn, "PNG")
    write_bytes(arguments.output, packed.getvalue())
    write_bytes(grid, drawn.getvalue())
    console.print(
        f"{arguments.output}: {len(images):,} images of {classes} classes, picture in {grid}; "
        f"a linear probe tells the classes apart with {percent(separability(images))} accuracy.",
        markup=False,
        soft_wrap=True,
    )
