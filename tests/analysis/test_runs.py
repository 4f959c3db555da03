"""The theorem's terms of a run's models: which model, which samples, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from vhl.analysis import runs as measured
from vhl.analysis.margin import mean_margin
from vhl.analysis.runs import measure_run
from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.models.base import Model
from vhl.models.vectors import Layout
from vhl.runs.folder import RunFolder
from vhl.runs.model import saved_tensors
from vhl.session.session import Session
from vhl.virtual.base import Generator
from vhl.virtual.noise import Noise

SEEDS = {"data": 3, "model": 1, "sampling": 2, "batches": 4}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Callable[..., RunFolder]:
    """Two rounds on digits, the first one's model kept."""

    def run(**settings: Any) -> RunFolder:
        experiment = Experiment(
            **{
                "model": {"name": "cnn", "width": 4},
                "virtual": {"name": "noise", "per_class": 12},
                "objective": {"name": "vhl", "virtual_batch": 16},
                "training": {"lr": 0.05, "epochs": 2},
                "rounds": 2,
                "keep_at": [1],
                "seeds": SEEDS,
                "device": "cpu",
                **settings,
            }
        )
        session = Session(experiment, tmp_path_factory.mktemp("runs"), data_dir=data_dir)
        list(session)
        return session.folder

    return run


@pytest.fixture(scope="module")
def run(trained: Callable[..., RunFolder]) -> RunFolder:
    return trained()


def against(run: RunFolder, generator: Noise) -> Experiment:
    return run.experiment().model_copy(update={"virtual": generator})


def test_each_model_has_the_accuracy_of_its_round(run: RunFolder, data_dir: Path) -> None:
    found = measure_run(run, data_dir=data_dir)
    assert list(found) == [1, 2]
    for record in run.records():
        assert found[record.round].accuracy == pytest.approx(record.accuracy, abs=1e-9)
    assert found[1] != found[2]


def test_margins_are_those_of_the_network_s_features(run: RunFolder, data_dir: Path) -> None:
    """Features and head by a network of our own, on images made and normalised apart."""
    experiment, data, noise = run.experiment(), run.data(), Noise(per_class=12)
    dataset = experiment.data.load(data_dir, SEEDS["data"])
    network = experiment.model.build(20, 1, dataset.train.shape[:2]).eval()
    network.load_state_dict(saved_tensors(run, "1", Layout(network)))
    frequencies = torch.from_numpy(np.bincount(dataset.test.labels) / len(dataset.test))
    drawn = 10, 12, dataset.train.shape, SEEDS["data"]
    sets = {
        "margin_natural": (dataset.test, np.array(data["mean"]), np.array(data["std"])),
        "margin_virtual": (noise.held_out(*drawn), 0.5, 0.25),
        "margin_virtual_train": (noise.generate(*drawn), 0.5, 0.25),
    }
    measure_run(run, [1], data_dir=data_dir)
    written = json.loads((run.path / "theory.json").read_text(encoding="utf-8"))["terms"]
    (kept,) = [terms for terms in written if terms["round"] == 1]
    for name, (images, mean, std) in sets.items():
        pixels = torch.from_numpy((images.images / 255 - mean) / std).float().permute(0, 3, 1, 2)
        with torch.no_grad():
            features, _ = network(pixels)
            expected = mean_margin(
                features["last"],
                torch.from_numpy(images.labels),
                network.head.weight,
                network.head.bias,
                10,
                frequencies,
            )
        assert kept[name] == pytest.approx(expected, rel=1e-4) and expected > 0


def test_held_out_images_are_not_those_of_training(
    run: RunFolder, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def watch(natural: Any, held_out: Any, train: Any, *rest: Any, **options: Any) -> Any:
        seen.update(natural=natural, held_out=held_out, train=train)
        return original(natural, held_out, train, *rest, **options)

    original = measured.measure
    monkeypatch.setattr(measured, "measure", watch)
    monkeypatch.setattr(measured, "LIMIT", 7)
    measure_run(run, [2], data_dir=data_dir)
    (train, train_labels), (held_out, held_out_labels) = seen["train"], seen["held_out"]
    assert len(train) == len(held_out) == 70 and len(seen["natural"][0]) > 300
    assert train_labels.tolist() == held_out_labels.tolist() == sorted(list(range(10)) * 7)
    assert not any((row == train).all(1).any() for row in held_out)


def test_they_are_kept_in_the_run_s_folder(run: RunFolder, data_dir: Path) -> None:
    found = measure_run(run, [2], against(run, Noise(deviation=0.25, per_class=9)), data_dir)
    kept = json.loads((run.path / "theory.json").read_text(encoding="utf-8"))
    assert kept["virtual"]["deviation"] == 0.25
    assert [row["round"] for row in kept["terms"]] == [2]
    assert kept["terms"][0]["distance"] == found[2].distance
    assert found[2].distance != measure_run(run, [2], data_dir=data_dir)[2].distance


def test_a_plain_run_needs_virtual_data_to_be_measured_against(
    trained: Callable[..., RunFolder], data_dir: Path
) -> None:
    plain = trained(objective="plain")
    with pytest.raises(VHLError, match="--virtual noise"):
        measure_run(plain, data_dir=data_dir)
    found = measure_run(plain, [2], against(plain, Noise(per_class=9)), data_dir)[2]
    assert found.accuracy == found.merged_accuracy == pytest.approx(plain.records()[1].accuracy)


def test_other_numbers_of_classes_are_refused(run: RunFolder, data_dir: Path) -> None:
    with pytest.raises(VHLError, match="3 are not 10"):
        measure_run(run, [2], against(run, Noise(classes=3)), data_dir)


def test_outputs_that_are_no_twins_are_refused(trained: Callable[..., RunFolder], data_dir: Path) -> None:
    """Twenty outputs, but the last ten are virtual classes that have no natural one."""
    virtual = {"name": "noise", "per_class": 12, "classes": 20}
    shared = trained(virtual=virtual, objective={"name": "vhl", "shared_labels": True})
    with pytest.raises(VHLError, match=r"20 are not 10; train with virtual\.classes unset"):
        measure_run(shared, [2], against(shared, Noise(per_class=9)), data_dir)


def test_terms_against_images_of_another_seed_begin_anew(run: RunFolder, data_dir: Path) -> None:
    for seed, rounds in ((5, [1]), (6, [2])):
        other = against(run, Noise(per_class=9)).with_(seeds={**SEEDS, "data": seed})
        measure_run(run, rounds, other, data_dir)
        found = json.loads((run.path / "theory.json").read_text(encoding="utf-8"))
        assert found["seed"] == seed and [terms["round"] for terms in found["terms"]] == rounds


def test_a_round_that_was_not_kept_is_named(run: RunFolder, data_dir: Path) -> None:
    with pytest.raises(VHLError, match="keeps no model '7'"):
        measure_run(run, [7], data_dir=data_dir)


class _Twice(nn.Module):
    """A classifier behind a nonlinearity."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(256, 5), nn.Linear(5, classes)

    def forward(self, x: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        features = self.body(x.flatten(1))
        return {"last": features}, self.head(features.relu())


class TwiceModel(Model):
    def build(self, classes: int, channels: int, size: tuple[int, int]) -> nn.Module:
        return _Twice(classes)


def test_a_classifier_that_is_not_linear_in_the_features_is_refused(
    trained: Callable[..., RunFolder], data_dir: Path
) -> None:
    strange = trained(model=TwiceModel())
    with pytest.raises(VHLError, match="linear classifier on the features"):
        measure_run(strange, [2], data_dir=data_dir)


def test_a_generator_that_cannot_draw_more_says_so() -> None:
    with pytest.raises(VHLError, match="does not say how to draw more"):
        Generator().held_out(2, 3, (8, 8, 1), 0)
