"""Turning whatever a missing or damaged file makes a decoder raise into one sentence."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from vhl.data.images import ImageSet
from vhl.data.sources.base import data_directory
from vhl.errors import VHLError


def get_command(name: str, data_dir: Path) -> str:
    """What to do about a missing or damaged official file."""
    elsewhere = "" if data_dir == data_directory() else f" --data-dir {shlex.quote(str(data_dir))}"
    return f"run `vhl data get {name}{elsewhere}`"


@contextmanager
def reading(file: Path, remedy: str) -> Iterator[None]:
    """Read and decode ``file`` inside; what is wrong with it becomes one sentence that ends in ``remedy``.

    A decoder that meets hostile bytes may raise nearly anything, so every exception counts as damage.
    """
    try:
        yield
    except VHLError:
        raise
    except FileNotFoundError:
        raise VHLError(f"{file} is missing; {remedy}.") from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise VHLError(f"{file} cannot be read ({error.strerror}); check its permissions.") from error
        reason = str(error).split("\n")[0].rstrip(".") or type(error).__name__
        raise VHLError(f"{file} is damaged ({reason}); {remedy}.") from error


def labelled(images: np.ndarray, labels: np.ndarray, classes: int) -> ImageSet:
    """Images with a file's labels; ``ValueError`` unless each has one, from 0 to ``classes`` − 1."""
    if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1]:
        raise ValueError(f"it does not have one whole number as label for each of {len(images)} images")
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise ValueError(f"label {wrong[0]} is not between 0 and {classes - 1}")
    return ImageSet(images, labels.astype(np.int64))
