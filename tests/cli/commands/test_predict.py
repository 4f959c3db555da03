from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest


def classes(out: str) -> dict[str, str]:
    """Class by file, from the printed table."""
    rows = [re.split(r"\s*│\s*", line.strip("│ ")) for line in out.splitlines() if line.startswith("│")]
    assert all(re.fullmatch(r"\d+\.\d%", probability) for _, _, probability in rows)
    return {Path(file).name: name for file, name, _ in rows}


@pytest.mark.parametrize("source", ["run", "file"])
def test_a_folder_of_pictures(vhl: Any, trained: Path, unseen: Path, source: str) -> None:
    model: Path = trained
    if source == "file":
        model = Path("model.safetensors")
        assert vhl("export", trained).code == 0
    answer = vhl("predict", model, unseen)
    assert answer.code == 0
    assert classes(answer.out) == {"[bold]night.png": "dark", "day.jpeg": "light"}


def test_one_picture(vhl: Any, trained: Path, unseen: Path) -> None:
    picture = unseen / "deeper" / "day.jpeg"
    assert classes(vhl("predict", trained, picture).out) == {"day.jpeg": "light"}


def test_what_is_no_picture(vhl: Any, trained: Path, unseen: Path) -> None:
    vhl("predict", trained, unseen / "deeper" / "notes.txt").complains("notes.txt", "no image")
    vhl("predict", trained, "nowhere").complains("nowhere")
    Path("empty").mkdir()
    vhl("predict", trained, "empty").complains("empty")


@pytest.mark.parametrize("content", [b"", b"no tensors", None])
def test_what_is_no_model(vhl: Any, trained: Path, content: bytes | None) -> None:
    if content is None:  # tensors, but nothing that says of what
        shutil.copy(trained / "models" / "round-000002.safetensors", "file.safetensors")
    else:
        Path("file.safetensors").write_bytes(content)
    vhl("predict", "file.safetensors", "picture.png").complains("file.safetensors", "vhl export")
