"""Every command and every piece of Python in the README and the guides runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vhl.cli.main import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.compile(r"^```(bash|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
QUICK = ["rounds=1", "virtual.per_class=20", "model.width=4"]
"""Laid over each run, so that the commands are tested and not the patience."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with the README's images in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VHL_DATA", str(tmp_path / "data"))
    rng = np.random.default_rng(0)
    for site, classes in {"north": ["healthy", "ill"], "south": ["healthy", "ill"], "west": ["ill"]}.items():
        for name in classes:
            folder = tmp_path / "scans" / site / name
            folder.mkdir(parents=True)
            for number in range(6):
                pixels = rng.integers(0, 255, (20 + number, 24, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.jpg")
    return tmp_path


def test_the_readme_runs_from_top_to_bottom(place: Path) -> None:
    commands = 0
    for language, text in BLOCKS.findall(README):
        if language == "python":
            exec(compile(text, "README.md", "exec"), {})
            named = re.match(r"# (\w+\.py)\n", text)
            if named:
                (place / named[1]).write_text(text, encoding="utf-8")
            continue
        for line in text.splitlines():
            program, *words = shlex.split(line, comments=True)
            assert program == "vhl"
            quick = QUICK if words[0] in ("run", "sweep") else []
            assert main([*words, *quick]) == 0, line
            commands += 1
    assert commands >= 6
    assert (place / "runs" / "scans" / "metrics.jsonl").is_file()
    assert (place / "runs" / "mine" / "metrics.jsonl").is_file()


def test_the_guide_to_the_theorem(place: Path) -> None:
    ((_, text),) = BLOCKS.findall((ROOT / "docs" / "theory.md").read_text(encoding="utf-8"))
    install, *lines = (shlex.split(line) for line in text.splitlines())
    assert install == ["pip", "install", "vhl[analysis]"]
    for program, *words in lines:
        quick = ["keep_at=[1]", "rounds=2", *QUICK[1:]] if words[0] == "run" else []
        assert program == "vhl" and main([*words, *quick]) == 0, words
    assert len(list(place.glob("runs/*/theory.json"))) == 2


def test_the_readme_names_every_component() -> None:
    from vhl.registry import available

    for room in ("algorithms", "objectives", "generators", "sources", "partitions", "models", "distances"):
        for name in available(room):
            shown = {"dataset": "dataset:", "folder": "folder:", "npz": "npz:"}.get(name, name)
            assert f"`{shown}" in README, f"{room}: {name}"
