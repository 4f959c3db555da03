from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vhl.data.images import ImageSet
from vhl.experiment import Experiment
from vhl.runs.classifier import classifier
from vhl.runs.folder import RunFolder
from vhl.runs.model import trained_model


@pytest.fixture(scope="module")
def test_images(experiment: Experiment, data_dir: Path) -> ImageSet:
    return experiment.data.load(data_dir, experiment.seeds.data).test


@pytest.mark.parametrize(("which", "round_"), [("last", 5), ("2", 2), ("5", 5), ("best", None), (None, None)])
def test_it_classifies_as_the_run_did(
    finished: Path, test_images: ImageSet, which: str | None, round_: int | None
) -> None:
    """Natural accuracy is argmax over the natural outputs: all that a model without virtual ones has."""
    run = RunFolder(finished)
    if round_ is None:
        manifest = run.manifest()
        assert manifest is not None
        round_ = manifest["best"]["round"]
        assert round_ != 5  # else this could not tell best from last
    model = classifier(*trained_model(run, which))
    logits = model(torch.from_numpy(test_images.images))
    assert logits.shape == (len(test_images), 10)
    hits = logits.argmax(1) == torch.from_numpy(test_images.labels)
    assert float(hits.float().mean()) == pytest.approx(run.records()[round_ - 1].natural_accuracy)


def test_kept_models_differ(finished: Path) -> None:
    """Else the test above could not tell them apart."""
    two, five = (trained_model(RunFolder(finished), which)[0]["head.weight"] for which in ("2", "5"))
    assert two.shape == five.shape == (10, 32) and not two.equal(five)


@pytest.mark.parametrize("which", ["7", "bset", "-1", "²"])
def test_a_model_that_is_not_kept(finished: Path, complains: Any, which: str) -> None:
    with complains(finished, repr(which), "best, last, 2, 5"):
        trained_model(RunFolder(finished), which)


def test_without_validation_the_last_model_is_taken(
    experiment: Experiment, run_in: Callable[..., Path], tmp_path: Path, complains: Any
) -> None:
    run = RunFolder(run_in(experiment.with_(data={"validation": 0.0}, rounds=1, keep_at=[1]), tmp_path))
    taken, kept = trained_model(run)[0], trained_model(run, "1")[0]
    assert all(taken[name].equal(kept[name]) for name in kept)
    with complains(run.path, "data.validation", "last"):
        trained_model(run, "best")


def test_before_the_first_checkpoint(finished: Path, tmp_path: Path, complains: Any) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    shutil.rmtree(folder / "state")
    with complains(folder, "--resume"):
        trained_model(RunFolder(folder))


def test_what_is_no_run(tmp_path: Path, complains: Any) -> None:
    with complains(tmp_path, "no run folder"):
        trained_model(RunFolder(tmp_path))


def test_the_signature_says_how_images_are_prepared(finished: Path) -> None:
    signature = trained_model(RunFolder(finished))[1]
    data = json.loads((finished / "data.json").read_text(encoding="utf-8"))
    assert signature.classes == tuple("0123456789")
    assert (signature.channels, signature.size) == (1, (8, 8))
    assert signature.mean == tuple(data["mean"]) and signature.std == tuple(data["std"])
    assert signature.model["name"] == "cnn" and signature.model["width"] == 8
