"""A command gives back the experiment it was made from, read as `vhl run` reads it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from vhl.cli import settings
from vhl.experiment import Experiment, dotted
from vhl.runs.command import command_of

USUAL = "vhl run data=digits partition=lda virtual=noise model=cnn objective=vhl algorithm=fedavg"


@pytest.mark.parametrize(
    ("given", "command"),
    [
        ({}, USUAL),
        ({"name": "mine", "rounds": 100}, USUAL),  # the name is not what is computed; 100 is the default
        ({"rounds": 7, "training": {"lr": 1e-5}}, f"{USUAL} training.lr=1e-05 rounds=7"),
        ({"data": {"name": "digits", "size": None}}, f"{USUAL} data.size=unset"),
        ({"features_at": [1, 5]}, f"{USUAL} 'features_at=[1, 5]'"),
        ({"data": "folder:my images"}, USUAL.replace("data=digits", "'data=folder:my images'")),
        ({"profile": "release"}, USUAL.replace("run ", "run profile=release ")),
    ],
)
def test_every_part_is_named_and_no_default(given: dict[str, Any], command: str) -> None:
    assert command_of(Experiment(**given)) == command


@pytest.mark.parametrize(
    "given",
    [
        {"data": 'folder:my "own" images/it\'s'},
        {"data": "folder:C:\\new\\table $HOME `x` # y ; z"},
        {"data": "npz:lr=0.5.npz"},
        {"data": "folder:שלום 🦊"},
        {"data": {"name": "folder", "path": "true", "size": 8, "mean": [0.1, 0.2, 0.3]}},
        {"data": {"name": "digits", "size": "unset", "validation": 0.25}},
        {"partition": {"name": "lda", "alpha": 0.3, "min_size": "unset"}},
        {"partition": "classes:3", "clients_per_round": 1.0},
        {"partition": "iid:4", "clients_per_round": 1},
        {"partition": "centralized"},
        {"partition": "centralized", "training": {"keep_momentum": False}},
        {"virtual": "dataset:svhn"},
        {"virtual": {"name": "dataset", "source": {"name": "svhn", "size": 16, "crop": "unset"}}},
        {"virtual": {"name": "dataset", "source": {"name": "folder", "path": "other images", "size": 16}}},
        {"virtual": {"name": "stylegan", "deviation": None, "width": 64}},
        {"model": {"name": "cnn", "width": 8, "start": "runs/a b/model.safetensors"}},
        {"model": {"name": "cnn", "start": "2024"}},
        {"model": {"name": "cnn", "start": '"quoted"'}},
        {"objective": {"name": "vftl", "pretrain": {"epochs": 2}}},
        {"objective": {"name": "vhl", "tap": "stage1", "virtual_batch": 64, "detach": False}},
        {"algorithm": {"name": "fedprox", "mu": 1}},
        {"profile": "release", "algorithm": "fedprox", "virtual": "stylegan"},
        {"profile": "release", "algorithm": {"name": "fedprox", "mu": 0.1}, "sampling": "uniform"},
        {"profile": "release", "training": {"keep_momentum": False, "decay_per": "round"}},
        {
            "engine": {"precision": "fp64", "capture": False, "lanes": 2, "deterministic": True},
            "device": "cpu",
        },
        {"seeds": {"data": 7, "batches": 2}, "keep_at": [3], "evaluate_every": 5, "checkpoint_every": 3},
    ],
    ids=str,
)
def test_a_command_gives_the_experiment_back(given: dict[str, Any]) -> None:
    experiment = Experiment(**given)
    _, run, *words = shlex.split(command_of(experiment))
    assert run == "run" and dotted(settings.read(words)) == dotted(experiment)


def test_a_component_of_ones_own(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from vhl.algorithms.fedavg import FedAvg\n\n\nclass Mine(FedAvg):\n    twist: float = 0.5\n",
        encoding="utf-8",
    )
    experiment = Experiment(algorithm={"name": "mine.py:Mine", "twist": 0.75})
    command = command_of(experiment)
    assert "algorithm=mine.py:Mine" in command and command.endswith("algorithm.twist=0.75")
    assert dotted(settings.read(shlex.split(command)[2:])) == dotted(experiment)


def test_an_option_that_must_be_set_is_in_the_command(tmp_path: Path) -> None:
    file = tmp_path / "bounded.py"
    file.write_text(
        "from pydantic import Field\nfrom vhl.algorithms.fedavg import FedAvg\n\n\n"
        "class Bounded(FedAvg):\n    bound: float = Field(gt=0)\n    other: int = 3\n"
    )
    given = {"name": f"{file}:Bounded", "bound": 2.5}
    command = command_of(Experiment(algorithm=given))
    assert command == USUAL.replace("fedavg", f"{file}:Bounded algorithm.bound=2.5")
