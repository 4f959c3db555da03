from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from vhl.cli.running import with_seeds
from vhl.experiment import Experiment

Metrics = Callable[[Path], list[dict[str, Any]]]


def test_what_is_printed_is_what_was_measured(vhl: Any, tiny: tuple[str, ...], metrics: Metrics) -> None:
    answer = vhl("run", *tiny, "name=run")
    records = metrics(Path("runs/run"))
    first, *lines, last, page = answer.out.splitlines()
    assert first == "run: 2 rounds to go"  # before the first, which may take long
    assert answer.code == 0 and answer.err == "" and len(lines) == len(records) == 2
    for line, record in zip(lines, records, strict=True):
        assert re.fullmatch(
            rf"round {record['round']}/2  accuracy {100 * record['accuracy']:.1f}%  [\d,]+ images/s", line
        )
    best = 100 * max(record["accuracy"] for record in records)
    assert last == (
        f"run: best {best:.1f}%, mean of the last 10 % {100 * records[-1]['accuracy']:.1f}%; in runs/run"
    )
    assert page == "report: runs/run/report.html" and Path("runs/run/report.html").is_file()
    assert [path.name for path in Path("runs").iterdir()] == ["run"]


def test_an_experiment_file_and_settings(vhl: Any, tiny: tuple[str, ...]) -> None:
    vhl("init", "mine.toml")
    assert vhl("run", "mine.toml", *tiny, "rounds=1", "algorithm=fedprox").code == 0
    experiment = Experiment.read(Path("runs/digits-lda-fedprox-vhl-seed0/experiment.toml"))
    assert experiment.algorithm.name == "fedprox" and experiment.rounds == 1


def test_a_run_is_continued_only_when_asked(vhl: Any, tiny: tuple[str, ...], metrics: Metrics) -> None:
    vhl("run", *tiny, "name=run")
    vhl("run", *tiny, "name=run").complains("runs/run", "--resume")
    assert len(metrics(Path("runs/run"))) == 2
    answer = vhl("run", *tiny, "name=run", "rounds=3", "--resume")
    assert answer.out.startswith("run: 1 round to go\nround 3/3") and len(metrics(Path("runs/run"))) == 3


@pytest.mark.parametrize("how", ["moved", "elsewhere", "from within"])
def test_a_run_folder_is_continued_where_it_lies(
    vhl: Any,
    tiny: tuple[str, ...],
    metrics: Metrics,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    how: str,
) -> None:
    vhl("run", *tiny, "name=run", "rounds=1", "--runs-dir=other")
    word: object = "other/run"
    folder = tmp_path / "other" / "run"
    if how == "moved":
        folder = folder.rename(tmp_path / "other" / "renamed")
        word = "other/renamed"
    elif how == "from within":
        monkeypatch.chdir(folder)
        word = "."
    assert vhl("run", word, "--resume", "rounds=2").code == 0
    assert len(metrics(folder)) == 2
    assert not list(tmp_path.rglob("runs"))


def test_seeds_vary_all_chance_but_the_data(vhl: Any, tiny: tuple[str, ...], metrics: Metrics) -> None:
    answer = vhl("run", *tiny, "rounds=1", "name=run", "seeds.data=5", "--seeds=3,4")
    folders = [Path("runs/run-seed3"), Path("runs/run-seed4")]
    for seed, folder in zip((3, 4), folders, strict=True):
        seeds = Experiment.read(folder / "experiment.toml").seeds
        assert seeds.model_dump() == {"data": 5, "model": seed, "sampling": seed, "batches": seed}
    counts = [json.loads((folder / "data.json").read_text(encoding="utf-8"))["counts"] for folder in folders]
    assert counts[0] == counts[1]  # the same problem
    accuracies = [100 * metrics(folder)[0]["accuracy"] for folder in folders]
    assert accuracies[0] != accuracies[1]
    mean, deviation = np.mean(accuracies), np.std(accuracies, ddof=1)
    assert f"{mean:.1f} ± {deviation:.1f}" in answer.out


def test_seeds_without_a_name_are_told_apart() -> None:
    repeats = with_seeds(Experiment(), [0, 7])
    assert [e.name for e in repeats] == ["", ""] and [e.seeds.batches for e in repeats] == [0, 7]
    assert with_seeds(Experiment(), None) == [Experiment()]


def test_notes_go_to_standard_error(vhl: Any, tiny: tuple[str, ...]) -> None:
    answer = vhl("run", *tiny, "rounds=1", "virtual.classes=4")
    assert answer.code == 0 and answer.err.startswith("note: 4 virtual and 10 natural classes")
    assert "note" not in answer.out


# --- the user's own ------------------------------------------------------------------------------------

OWN_METHOD = """
from pydantic import Field
from vhl.algorithms.fedavg import FedAvg

class Cautious(FedAvg):
    \"\"\"Moves only part of the way to the average.\"\"\"

    share: float = Field(0.5, ge=0, le=1, description="part of the way")

    def aggregate(self, server, updates, clients):
        average, state = super().aggregate(server, updates, clients)
        return server.parameters + self.share * (average - server.parameters), state
"""


def test_an_own_method_from_a_file(vhl: Any, tiny: tuple[str, ...], metrics: Metrics) -> None:
    Path("own_method.py").write_text(OWN_METHOD, encoding="utf-8")
    own = [*tiny, "rounds=1", "keep_at=[1]", "algorithm=own_method.py:Cautious"]
    for name, settings in {
        "still": [*own, "algorithm.share=0"],
        "half": [*own, "algorithm.share=0.5"],
        "whole": [*own, "algorithm.share=1"],
        "fedavg": [*own, "algorithm=fedavg"],
    }.items():
        assert vhl("run", *settings, f"name={name}").code == 0
    weights = {
        name: load_file(Path("runs") / name / "models" / "round-000001.safetensors")["head.weight"]
        for name in ("still", "half", "whole", "fedavg")
    }
    assert weights["whole"].allclose(weights["fedavg"], atol=1e-6)
    assert weights["half"].allclose((weights["still"] + weights["whole"]) / 2, atol=1e-6)
    assert not weights["still"].allclose(weights["whole"], atol=1e-4)
    vhl("run", *own, "algorithm.share=2", "name=x").complains("algorithm.share = 2")
    vhl("run", *own, "algorithm.shar=1", "name=x").complains("'shar'", "'share'")
    assert vhl("run", "runs/half", "--resume", "rounds=2").code == 0
    assert len(metrics(Path("runs/half"))) == 2


def test_what_the_file_does_not_define(vhl: Any) -> None:
    Path("own_other.py").write_text(OWN_METHOD, encoding="utf-8")
    vhl("run", "algorithm=own_other.py:Cautius").complains("own_other.py", "'Cautius'")


OWN_MODEL = """
from torch import nn

class Linear(nn.Module):
    def __init__(self, inputs, features, classes):
        super().__init__()
        self.body, self.out = nn.Linear(inputs, features), nn.Linear(features, classes)

    def forward(self, images):
        features = self.body(images.flatten(1)).relu()
        return {"last": features}, self.out(features)

def build(classes, channels, size, features=6):
    return Linear(channels * size[0] * size[1], features, classes)
"""


def test_an_own_network_from_a_file(vhl: Any, pictures: Path, metrics: Metrics) -> None:
    Path("own_model.py").write_text(OWN_MODEL, encoding="utf-8")
    settings = [
        f"data=folder:{pictures}",
        "data.size=8",
        "partition=given",
        "virtual.per_class=3",
        "objective.virtual_batch=8",
        "model=own_model.py:build",
        "model.features=5",
        "training.batch_size=8",
        "rounds=3",
        "name=own",
    ]
    assert vhl("run", *settings).code == 0
    assert vhl("export", "runs/own", "-o", "own.safetensors").code == 0
    tensors = load_file("own.safetensors")
    assert tensors["body.weight"].shape == (5, 3 * 8 * 8)
    assert tensors["out.weight"].shape == (2, 5)  # dark and light; the virtual outputs are gone
    answer = vhl("predict", "own.safetensors", pictures / "north")
    assert answer.code == 0 and answer.out.count(".jpg") == 20


def test_own_pictures_with_one_command(trained: Path, metrics: Metrics) -> None:
    """A folder of JPEGs with a folder a site, and partition=given: the command is in the fixture."""
    data = json.loads((trained / "data.json").read_text(encoding="utf-8"))
    assert data["sites"] == ["north", "south"] and data["classes"] == ["dark", "light"]
    # a fifth of each site's class is kept to test on: of 16, 4, 8 and 12 that is 3, 1, 2 and 2
    assert data["counts"] == [[13, 3], [6, 10]] and data["test_samples"] == 8
    assert metrics(trained)[-1]["accuracy"] == 1.0
