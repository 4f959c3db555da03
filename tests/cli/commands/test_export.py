from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import vhl as package


def test_the_two_lines_that_export_prints_work(vhl: Any, trained: Path, unseen: Path) -> None:
    answer = vhl("export", trained, "-o", "deep/er/it's.safetensors")
    first, *lines = answer.out.splitlines()
    assert first.startswith("deep/er/it's.safetensors: 2 classes")
    assert len(lines) == 2
    names: dict[str, Any] = {}
    exec("\n".join(line.strip() for line in lines), names)
    model = names["model"]
    assert model.classes == ("dark", "light")
    files = [unseen / "deeper" / "[bold]night.png", unseen / "deeper" / "day.jpeg"]
    probabilities = model.probabilities(files)
    assert probabilities.argmax(1).tolist() == [0, 1]
    assert probabilities.sum(1).tolist() == pytest.approx([1, 1])


def test_an_exported_model_has_no_virtual_outputs(vhl: Any, trained: Path) -> None:
    vhl("export", trained)
    kept = load_file(trained / "models" / "round-000002.safetensors")
    assert kept["head.weight"].shape[0] == 4  # in training: two natural classes and two virtual ones
    assert load_file("model.safetensors")["head.weight"].shape[0] == 2


def test_which_model(vhl: Any, trained: Path) -> None:
    vhl("export", trained, "--model=2", "-o", "two.safetensors")
    vhl("export", trained, "--model=last", "-o", "last.safetensors")
    kept = load_file(trained / "models" / "round-000002.safetensors")["head.weight"][:2]
    assert load_file("two.safetensors")["head.weight"].equal(kept)
    assert not load_file("last.safetensors")["head.weight"].equal(kept)
    vhl("export", trained, "--model=best").complains("data.validation")
    vhl("export", trained, "--model=3").complains("'3'", "last, 2")


def test_a_place_where_nothing_can_be_written(vhl: Any, trained: Path) -> None:
    Path("folder").mkdir()
    vhl("export", trained, "-o", "folder").complains("folder", "cannot be written")
    assert not list(Path.cwd().rglob("*.part"))


def test_training_starts_from_an_exported_model(vhl: Any, trained: Path, pictures: Path) -> None:
    vhl("export", trained)
    settings = ["data.size=8", "partition=given", "model.width=4", "objective=plain", "rounds=1", "name=on"]
    start = ["model.start=model.safetensors", "training.lr=1e-9"]
    assert vhl("run", f"data=folder:{pictures}", *settings, *start).code == 0
    vhl("export", "runs/on", "-o", "on.safetensors")
    before, after = package.load_model("model.safetensors"), package.load_model("on.safetensors")
    for name, parameter in before.named_parameters():
        assert parameter.allclose(dict(after.named_parameters())[name], atol=1e-5)
