"""A deployment computes what a simulation does: whole runs through both apps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from vhl.config.listing import available
from vhl.deploy.client_app import app
from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.runs.classifier import classifier
from vhl.runs.model import trained_model


@pytest.fixture
def runs_like_the_simulator(deployment: Any, state_of: Any) -> Callable[..., None]:
    """Runs the experiment over sites and in the simulator, and compares everything."""

    def compare(experiment: Experiment, over: Any = deployment) -> None:
        folder = over.run(experiment)
        found, (expected, records) = state_of(folder), over.simulated(experiment)
        assert found.server.parameters.equal(expected.server.parameters)
        assert found.server.buffers.equal(expected.server.buffers)
        assert found.server.state.keys() == expected.server.state.keys()
        assert all(v.equal(expected.server.state[k]) for k, v in found.server.state.items())
        for ours, theirs in zip(folder.records(), records, strict=True):
            clock = {"seconds", "side_by_side"}
            assert ours.model_dump(exclude=clock) == theirs.model_dump(exclude=clock)

    return compare


@pytest.mark.parametrize("objective", ["plain", "vhl"])
@pytest.mark.parametrize("algorithm", sorted(available("algorithms")))
def test_to_the_bit(algorithm, objective, experiment, runs_like_the_simulator):
    changes: dict[str, Any] = {"algorithm": algorithm, "objective": objective, "rounds": 2}
    if algorithm == "feddf":
        changes |= {"data": {"validation": 0.1}, "algorithm": {"name": "feddf", "steps": 20}}
    runs_like_the_simulator(experiment.with_(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {
            "training": {"keep_momentum": True, "decay_per": "participation"},
            "clients_per_round": 2,
            "rounds": 5,
        },
        {"objective": "vfa"},
        {"objective": "vftl"},
        {"objective": "vhl-light", "training": {"freeze_batch_norm": 1}},
        {"objective": {"name": "vhl-light", "mosaic_classes": "same"}, "algorithm": "scaffold"},
        {"objective": "naive", "sampling": "legacy", "clients_per_round": 1},
        {"model": {"name": "resnet8", "width": 4}, "algorithm": "fedavg"},
        {"engine": {"precision": "fp64"}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_to_the_bit_with_other_parts(changes, experiment, runs_like_the_simulator):
    runs_like_the_simulator(experiment.with_(**{"rounds": 2, **changes}))


def test_counts_of_the_sites_are_the_accuracy_on_all_their_test_images(experiment, deployment, state_of):
    """The sites' shares of the experiment's test images are all of them together."""
    folder = deployment.run(experiment, test="")
    expected, records = deployment.simulated(experiment)
    # Mean and deviation are agreed on by sums here, so that they differ in the last digits.
    torch.testing.assert_close(
        state_of(folder).server.parameters, expected.server.parameters, rtol=1e-4, atol=1e-6
    )
    for ours, theirs in zip(folder.records(), records, strict=True):
        assert ours.accuracy == pytest.approx(theirs.accuracy, abs=2 / 60)
    assert folder.data()["test_samples"] == 60
    assert not (folder.path / "last.safetensors").exists()


def test_the_report_and_the_model_are_those_of_any_run(experiment, deployment):
    folder = deployment.run(experiment, test="")
    assert "s0" in (folder.path / "report.html").read_text(encoding="utf-8")
    model = classifier(*trained_model(folder))
    digits = torch.from_numpy((load_digits().images[:200] * 15).astype(np.uint8))[..., None]
    right = model(digits).argmax(1) == torch.from_numpy(load_digits().target[:200])
    assert right.float().mean() == pytest.approx(folder.records()[-1].natural_accuracy, abs=0.15)


def test_in_flowers_simulation_runtime_nodes_have_numbers_alone(experiment, deploy, runs_like_the_simulator):
    deployment = deploy([{"name": f"ignored{i}", "partition-id": i, "num-partitions": 3} for i in range(3)])
    for context in deployment.grid.contexts.values():
        del context.node_config["name"]
    runs_like_the_simulator(experiment.with_(rounds=1), deployment)


def test_sites_hold_out_validation_images_too(experiment, deployment):
    folder = deployment.run(experiment.with_(data={"validation": 0.2}), test="")
    found = [record.validation_accuracy for record in folder.records()]
    manifest = folder.manifest()
    assert manifest is not None and manifest["best"]["validation_accuracy"] == max(found)
    assert sum(sum(own["validation"]) for own in folder.data()["deployment"]["facts"]) == 50


def test_an_experiment_with_code_of_its_own_is_refused_at_once(experiment, deployment, tmp_path):
    (tmp_path / "own.py").write_text(
        "from vhl.algorithms.fedavg import FedAvg\nclass Mine(FedAvg):\n    pass\n"
    )
    with pytest.raises(VHLError, match="is no part of the package installed here"):
        deployment.run(experiment.with_(algorithm=f"{tmp_path / 'own.py'}:Mine"))


# --- data of their own ---------------------------------------------------------------------------------


@pytest.fixture
def clinics(tmp_path: Path, deploy: Any) -> Any:
    """Three folders of pictures; none has all classes, one a single class, one is colour, of another size."""
    digits = load_digits()
    for clinic, classes, colour in (("a", (0, 1), False), ("b", (1,), False), ("c", (0, 2), True)):
        for label in classes:
            folder = tmp_path / clinic / "images" / f"class{label}"
            folder.mkdir(parents=True)
            for number in np.flatnonzero(digits.target == label)[:60]:
                picture = Image.fromarray((digits.images[number] * 15).astype(np.uint8))
                if colour:
                    picture = Image.merge("RGB", [picture, picture.rotate(90), picture]).resize((20, 12))
                picture.save(folder / f"{number}.png")
    return deploy([{"name": own, "data": f"folder:{tmp_path / own / 'images'}"} for own in "abc"])


@pytest.fixture
def of_folders(experiment: Experiment) -> Callable[..., Experiment]:
    def make(rounds: int = 1, data: Any = None, **changes: Any) -> Experiment:
        folder = {"name": "folder", "path": "-", "size": 8, **(data or {})}
        return experiment.with_(data=folder, partition="given", rounds=rounds, **changes)

    return make


def test_folders_at_the_sites(clinics, of_folders):
    folder = clinics.run(of_folders(8, algorithm="fedavg", training={"epochs": 5}), test="")
    data = folder.data()
    assert data["classes"] == ["class0", "class1", "class2"] and data["channels"] == 3
    assert "3 classes: class0, class1, class2. One site alone has class2 (c)." in clinics.notes
    assert data["counts"] == [[48, 48, 0], [0, 48, 0], [48, 0, 48]] and data["test_samples"] == 60
    assert folder.records()[-1].accuracy > 0.6
    assert '"folder, given"' in (folder.path / "report.html").read_text(encoding="utf-8")


def test_classes_mean_and_deviation_may_be_fixed(clinics, of_folders):
    """Then no site says anything of its pixels, and a class that nobody has is one."""
    experiment = of_folders(data={"mean": [0.3], "std": [0.4]})
    found = clinics.run(experiment, test="", classes="class2, class1, class0, class9").data()
    assert found["classes"] == ["class2", "class1", "class0", "class9"]
    assert found["mean"] == [0.3] * 3 and found["std"] == [0.4] * 3
    assert found["counts"] == [[0, 48, 48, 0], [0, 48, 0, 0], [48, 0, 48, 0]]
    assert not any(sum(own["sums"]) for own in found["deployment"]["facts"])


def test_the_server_may_have_test_images_of_its_own(clinics, of_folders):
    folder = clinics.run(of_folders(), test=f"folder:{clinics.folder / 'a' / 'images'}")
    assert folder.data()["test_samples"] == 120
    assert folder.records()[0].per_class[2] is None
    assert (folder.path / "last.safetensors").exists()


def test_no_image_leaves_a_site(clinics, of_folders):
    """Everything that is sent is named here, and all of it is the size of a model or of a table of counts."""
    replies = []

    def recorded(message: Any, context: Any) -> Any:
        replies.append(app(message, context))
        return replies[-1]

    clinics.grid.answers = dict.fromkeys(clinics.grid.answers, recorded)
    clinics.run(of_folders(), test="")
    names = {key for reply in replies for record in reply.content.values() for key in record}
    assert names == {"json", "parameters", "buffers", "message.control_change", "test.0", "test.1"}
    for reply in replies:
        for record in reply.content.array_records.values():
            assert not any(array.dtype == "uint8" for array in record.values())
