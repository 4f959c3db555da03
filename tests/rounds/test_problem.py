from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from vhl.rounds.problem import Problem, choose_device

from vhl.data.partitions.base import Partition
from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.models.base import Model


@pytest.fixture
def problem(small_digits, tmp_path):
    def make(**settings):
        defaults = {
            "data": small_digits(),
            "partition": "iid:4",
            "model": {"name": "cnn", "width": 4},
            "virtual": {"name": "noise", "per_class": 5},
            "device": "cpu",
        }
        return Problem(Experiment(**{**defaults, **settings}), tmp_path)

    return make


def state(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("wanted", ["nonsense", "meta", "mps", "cpu:x", "cuda:99"])
def test_devices_that_cannot_be_trained_on_are_refused(wanted):
    with pytest.raises(VHLError, match=f"device = '{wanted}'"):
        choose_device(wanted)


def test_device_is_cuda_where_there_is_one(monkeypatch):
    for there, kind in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert choose_device("auto").type == kind
    assert choose_device("cpu").type == "cpu"


def test_shape_by_hand(problem):
    """8×8 digits through widths 4, 8 and 16, halved twice; eight outputs."""
    shape = problem().shape
    assert (shape.classes, shape.outputs, shape.channels, shape.size) == (4, 8, 1, (8, 8))
    assert shape.features == {"stage1": 256, "stage2": 128, "stage3": 64, "last": 16}
    convolutions = 64 * 9 * 1 * 4 + 16 * 9 * 4 * 8 + 4 * 9 * 8 * 16
    assert shape.multiply_adds == convolutions + 16 * 8


def test_compute_is_relative_to_plain_training(problem):
    body, training = 64 * 9 * 4 + 16 * 9 * 32 + 4 * 9 * 128, {"batch_size": 10}
    plain = problem(objective="plain", training=training)
    assert plain.compute == 1.0
    vhl = problem(objective={"name": "vhl", "virtual_batch": 6}, training=training)
    assert vhl.compute == pytest.approx(16 * (body + 16 * 8) / (10 * (body + 16 * 4)))


@pytest.mark.parametrize(
    ("objective", "outputs", "virtual"),
    [("plain", 4, False), ("vfa", 4, False), ("vftl", 4, True), ("naive", 7, True)],
)
def test_virtual_data_only_where_the_objective_wants_them(problem, objective, outputs, virtual):
    found = problem(objective=objective, virtual={"name": "noise", "per_class": 5, "classes": 3})
    assert found.shape.outputs == outputs
    assert (found.virtual is not None) == virtual
    if virtual:
        assert np.bincount(found.virtual.images.labels).tolist() == [5, 5, 5]
        assert found.virtual.images.shape == (8, 8, 1)


def test_test_images_are_normalised_like_training_images(problem, small_digits):
    found = problem(data=small_digits(crop=1, flip=True))
    train = found.dataset.train.images / 255
    mean, std = train.mean(), train.std()
    batch = found.natural.test.batch(torch.arange(40), {})
    expected = (found.dataset.test.images / 255 - mean) / std
    np.testing.assert_allclose(batch.permute(0, 2, 3, 1), expected, atol=1e-5)
    virtual = found.virtual.plain.batch(torch.arange(20), {})
    np.testing.assert_allclose(
        virtual.permute(0, 2, 3, 1), (found.virtual.images.images / 255 - 0.5) / 0.25, atol=1e-5
    )


def test_weights_depend_on_the_seed_of_the_model_alone(problem):
    torch.manual_seed(1)
    one = problem().initial()
    drawn = torch.rand(2)
    torch.manual_seed(1)
    assert torch.rand(2).equal(drawn)  # the caller's chance is left alone
    same = problem(seeds={"data": 3, "sampling": 4, "batches": 5}).initial()
    other = problem(seeds={"model": 1}).initial()
    assert all(a.equal(b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not one.head.weight.equal(other.head.weight)
    assert not one.stages[0][0].weight.equal(other.stages[0][0].weight)


@pytest.mark.parametrize("model", [{"name": "cnn", "width": 4}, {"name": "resnet8", "width": 4}])
def test_paired_runs_share_the_body(problem, model):
    plain, vhl = (problem(objective=name, model=model) for name in ("plain", "vhl"))
    one, other = state(plain.initial()), state(vhl.initial())
    assert plain.head == vhl.head == ("head.weight", "head.bias")
    assert one["head.weight"].shape[0] == 4 and other["head.weight"].shape[0] == 8
    assert all(one[name].equal(other[name]) for name in one if name not in plain.head)


def test_start_loads_saved_tensors(problem, tmp_path):
    file = tmp_path / "start.safetensors"
    saved = {name: torch.rand_like(tensor) for name, tensor in problem().initial().state_dict().items()}
    save_file(saved, file)
    model = {"name": "cnn", "width": 4, "start": str(file)}
    loaded = state(problem(model=model).initial())
    assert all(loaded[name].equal(saved[name]) for name in saved)
    # a head of another width stays as freshly initialised
    plain = problem(objective="plain", model=model)
    narrow, fresh = state(plain.initial()), state(problem(objective="plain").initial())
    for name in saved:
        assert narrow[name].equal(fresh[name] if name in plain.head else saved[name])


def test_start_that_does_not_fit_is_refused(problem, tmp_path):
    file = tmp_path / "start.safetensors"
    saved = state(problem(model={"name": "cnn", "width": 8}).initial())
    save_file(saved, file)
    with pytest.raises(VHLError, match=r"start\.safetensors' does not fit.*stages\.0"):
        problem(model={"name": "cnn", "width": 4, "start": str(file)}).initial()
    file.write_bytes(b"no tensors")
    with pytest.raises(VHLError, match="no readable safetensors file"):
        problem(model={"name": "cnn", "width": 4, "start": str(file)}).initial()


class _Returns(Model):
    """A network whose forward returns what a test says."""

    what: str

    def build(self, classes, channels, size):
        class Module(nn.Module):
            def forward(module, images):  # noqa: N805
                logits = torch.zeros(len(images), classes + (self.what == "wide"))
                features = {"other" if self.what == "no tap" else "last": torch.zeros(len(images), 2)}
                return logits if self.what == "logits alone" else (features, logits)

        return Module()


@pytest.mark.parametrize("what", ["wide", "no tap", "logits alone"])
def test_own_network_with_a_wrong_forward_is_refused(problem, what):
    with pytest.raises(VHLError, match=r"forward must return \(features by tap, logits\)"):
        problem(model=_Returns(what=what))


def test_missing_tap_is_refused_with_the_taps_there_are(problem):
    with pytest.raises(VHLError, match=r"'stage4'.*stage1, stage2, stage3, last"):
        problem(objective={"name": "vhl", "tap": "deep"})


class _Empty(Partition):
    def assign(self, dataset, seed):
        return [np.arange(len(dataset.train)), np.arange(0)]


def test_client_without_images_is_refused(problem):
    with pytest.raises(VHLError, match="without images"):
        problem(partition=_Empty())


def test_shared_constants_follow_the_data_seed(problem):
    means = [
        problem(objective="vfa", seeds=seeds).shared["means"]
        for seeds in ({}, {"model": 1, "sampling": 1, "batches": 1}, {"data": 1})
    ]
    assert tuple(means[0].shape) == (4, 16)
    assert means[0].equal(means[1]) and not means[0].equal(means[2])


class _Half(Partition):
    def assign(self, dataset, seed):
        return [np.flatnonzero(dataset.train.labels == label) for label in (0, 2)]


def test_notes(problem, array_source, small_digits):
    assert problem().notes() == []
    assert problem(objective="plain", virtual={"name": "noise", "classes": 3}).notes() == []
    (note,) = problem(virtual={"name": "noise", "classes": 3, "per_class": 5}).notes()
    assert "3 virtual and 4 natural classes" in note
    (note,) = problem(partition=_Half()).notes()
    assert "class 1, class 3" in note
    (note,) = problem(algorithm="fednova", training={"keep_momentum": True}).notes()
    assert "keep_momentum" in note
    sited = array_source(small_digits().read(None, 0).train, 4, sites=2)
    assert problem(partition="centralized").notes() == []
    (note,) = problem(partition="centralized", training={"keep_momentum": False}).notes()
    assert "keep_momentum=true" in note
    (note,) = problem(data=sited).notes()
    assert "2 sites" in note
    spelt = small_digits()
    spelt._dataset = replace(spelt.read(None, 0), classes=("Ill", "well", "ill", "WELL!"))
    assert problem(data=spelt).notes() == [
        "Classes Ill, ill differ in capitals alone, and count as different."
    ]


@pytest.mark.parametrize("option", [{"freeze_batch_norm": 3}, {"lr_drops": [1, 3]}])
def test_a_note_says_what_is_never_reached(problem, option):
    (note,) = problem(rounds=3, training=option).notes()
    assert f"training.{next(iter(option))} = 3 is never reached in 3 rounds" in note
    assert problem(rounds=4, training=option).notes() == []


def test_clients_hold_what_the_partition_says(problem):
    found = problem(partition=_Half())
    totals = np.bincount(found.dataset.train.labels)
    assert found.clients == 2
    assert found.natural.counts.tolist() == [[totals[0], 0, 0, 0], [0, 0, totals[2], 0]]


class _Strange(Model):
    """A linear layer, and something before or after it that makes it no linear classifier of the features."""

    before: str = ""

    def build(self, classes, channels, size):
        inputs, before = channels * size[0] * size[1], self.before

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.hidden = nn.Linear(inputs, 7)
                self.head = nn.Linear(7 if before == "hidden" else inputs, classes)
                self.after = nn.BatchNorm1d(classes)

            def forward(self, images):
                features = images.flatten(1)
                if before == "hidden":
                    return {"last": features}, self.head(self.hidden(features))
                if before == "cosine":
                    return {"last": features}, self.head(10 * nn.functional.normalize(features))
                return {"last": features}, self.after(self.head(features))

        return Net()


@pytest.mark.parametrize("before", ["cosine", "hidden", ""])
def test_a_classifier_that_cannot_be_retrained_is_an_error_before_training(problem, before):
    with pytest.raises(VHLError, match="linear classifier"):
        problem(algorithm="ccvr", objective="plain", model=_Strange(before=before))
    problem(algorithm="ccvr", objective="plain")
    problem(objective="plain", model=_Strange(before=before))


def test_distillation_takes_all_classes_that_a_dataset_has(problem, small_digits):
    """Four natural classes; labels are dropped, so that ten of another dataset are welcome."""
    settings = {"data": small_digits(validation=0.25), "objective": "plain"}
    every = problem(**settings, algorithm={"name": "feddf", "images": "dataset:digits"})
    few = {"name": "dataset", "source": "digits", "classes": 3}
    some = problem(**settings, algorithm={"name": "feddf", "images": few})
    assert every.distillation.labels.unique().tolist() == list(range(10))
    assert some.distillation.labels.unique().tolist() == [0, 1, 2]
