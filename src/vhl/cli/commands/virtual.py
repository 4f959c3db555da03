"""`vhl virtual`: the virtual set, to look at and to use elsewhere."""

from __future__ import annotations

import argparse
import io
from pathlib import Path

from vhl.cli.arguments import Commands, add_command, add_data_dir, add_settings, count
from vhl.errors import VHLError


def add(commands: Commands) -> None:
    parser = add_command(commands, "virtual", _virtual)
    add_settings(parser)
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("virtual.npz"), help="images and labels (.npz)"
    )
    parser.add_argument(
        "--picture", type=Path, help="picture grid, classes × samples (default: beside the output)"
    )
    parser.add_argument("--samples", type=count, default=10, help="samples a class in the picture")
    add_data_dir(parser)


def _virtual(arguments: argparse.Namespace) -> None:
    """Make the virtual set and a picture of it."""
    import numpy as np

    from vhl.cli import settings
    from vhl.cli.display import making_images, percent, say
    from vhl.data.sources.base import data_directory
    from vhl.files import write_bytes
    from vhl.training.precision import choose_device
    from vhl.virtual.inspection import picture, separability
    from vhl.virtual.sets import virtual_set

    grid = arguments.picture or arguments.output.with_suffix(".png")
    if grid == arguments.output:
        raise VHLError(f"The images and their picture cannot both go to {grid}; choose -o FILE.npz.")
    experiment = settings.read(arguments.settings)
    directory = data_directory(arguments.data_dir)
    dataset = experiment.data.load(directory, experiment.seeds.data)
    classes = experiment.virtual.classes or len(dataset.classes)
    batch = experiment.objective.virtual_images(experiment.training.batch_size)
    images = virtual_set(
        experiment.virtual,
        classes,
        dataset.train.shape if batch is None else batch.shape(dataset.train.shape),
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
    say(
        f"{arguments.output}: {len(images):,} images of {classes} classes, picture in {grid}; "
        f"a linear probe tells the classes apart with {percent(separability(images))} accuracy."
    )
