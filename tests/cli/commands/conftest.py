"""Pictures to name the classes of."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def unseen() -> Iterator[Path]:
    """Two new pictures, one with a name that a terminal's markup would swallow."""
    folder = Path("unseen") / "deeper"
    folder.mkdir(parents=True)
    for name, level in {"[bold]night.png": 50, "day.jpeg": 200}.items():
        Image.fromarray(np.full((30, 30), level, np.uint8)).save(folder / name)
    (folder / "notes.txt").write_text("no picture", encoding="utf-8")
    yield Path("unseen")
    shutil.rmtree("unseen")
