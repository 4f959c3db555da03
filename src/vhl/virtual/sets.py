"""Virtual sets, made once and kept on disk."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from vhl.data.images import ImageSet, ImageStream
from vhl.errors import VHLError
from vhl.virtual.base import Generator, Progress, Shape, Workplace

if TYPE_CHECKING:
    import torch

_FORMAT = 1  # of the stored file
_log = logging.getLogger(__name__)


def virtual_set(
    generator: Generator,
    classes: int,
    shape: Shape,
    seed: int,
    data_dir: Path,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> ImageSet:
    """The generator's images, from ``data_dir/virtual`` where they were made before.

    Only generators that state a ``version`` are kept there. A file that cannot be read is made again; where
    none can be written, the set is made every time.
    """

    def make() -> ImageSet:
        place = Workplace(device, data_dir, progress)
        made = generator.generate(classes, generator.count_per_class(classes), shape, seed, place)
        _check(made, generator.name, classes, shape)
        return made

    if vars(type(generator)).get("version") is None:
        return make()
    key = fingerprint(generator, classes, shape, seed)
    file = data_dir / "virtual" / f"{generator.name}-{key[:16]}.safetensors"
    images = read_set(file, key)
    if images is None:
        images = make()
        write_set(file, images, key)
    return images


def _check(made: ImageSet, name: str, classes: int, shape: Shape) -> None:
    """A generator may be anyone's; a wrong size or a class without images would come out late or never."""
    if not isinstance(made, ImageSet):
        raise VHLError(f"virtual = {name} made {type(made).__name__}; it must make an ImageSet.")
    if made.shape != tuple(shape):
        raise VHLError(f"virtual = {name} made images of shape {made.shape}, not {tuple(shape)} as asked.")
    made.check_labels(classes, f"virtual = {name}")
    if missing := sorted(set(range(classes)) - set(made.labels.tolist())):
        raise VHLError(f"virtual = {name} made no image of class {missing[0]}; each class needs some.")


def fingerprint(generator: Generator, classes: int, shape: Shape, seed: int) -> str:
    """SHA-256 of all that decides the images: equal fingerprints, equal images (but for a device's rounding).

    Crop, flip and the like are left out: they happen in training.
    """
    in_training = set(ImageStream.model_fields) - {"name"}
    decisive = {
        "format": _FORMAT,
        "version": generator.version,
        "options": generator.model_dump(mode="json", exclude=in_training | {"classes", "per_class"}),
        "classes": classes,
        "per_class": generator.count_per_class(classes),
        "shape": shape,
        "seed": seed,
    }
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def read_set(file: Path, key: str) -> ImageSet | None:
    """The stored set, or nothing where the file is missing, damaged, or another set's."""
    try:
        with safe_open(file, "numpy") as stored:
            metadata = stored.metadata() or {}
            images = ImageSet(stored.get_tensor("images"), stored.get_tensor("labels"))
    except (OSError, SafetensorError, VHLError):
        return None
    # safetensors checks a file's structure, not its numbers
    whole = metadata.get("fingerprint") == key and metadata.get("content") == images.fingerprint()
    return images if whole else None


def write_set(file: Path, images: ImageSet, key: str) -> None:
    """Write under another name, then rename: under its own name a file is always whole."""
    unfinished = file.with_name(f".{uuid.uuid4().hex}.part")
    metadata = {"fingerprint": key, "content": images.fingerprint()}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file({"images": images.images, "labels": images.labels}, unfinished, metadata)
        unfinished.replace(file)
    except (OSError, SafetensorError) as error:
        _log.warning("The virtual set is not kept, for %s cannot be written (%s).", file, error)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
