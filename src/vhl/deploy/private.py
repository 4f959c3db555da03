"""Files that nobody but their owner may read: keys, and images of patients."""

from __future__ import annotations

import os
from pathlib import Path

from vhl.files import cannot_write, write_bytes


def write_private(path: Path, content: bytes) -> None:
    """Write a whole file or nothing; its owner's alone from the first byte, unfinished too."""
    mask = os.umask(0o077)
    try:
        write_bytes(path, content)
    finally:
        os.umask(mask)


def make_private(folder: Path) -> None:
    """See that there is such a folder, and that nobody else looks into it, whoever made it before."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise cannot_write(folder, error) from None
