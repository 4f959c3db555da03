from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from vhl.bench.work import Data, Work
from vhl.experiment import Experiment
from vhl.rounds.sampling import sample
from vhl.rounds.simulation import Simulation


@pytest.fixture
def experiment(small_digits):
    def make(source=None, **settings):
        training = {"batch_size": 8, "epochs": 2, "lr": 0.3, "momentum": 0.7, "weight_decay": 0.02}
        defaults = {
            "partition": {"name": "lda", "alpha": 0.5, "clients": 6},
            "model": {"name": "cnn", "width": 4},
            "objective": "plain",
            "training": training,
            "clients_per_round": 0.5,
            "seeds": {"sampling": 5},
            "device": "cpu",
        }
        return Experiment(data=small_digits(**(source or {})), **{**defaults, **settings})

    return make


def reference(work, image, row, column, flip):
    """Pad with black, crop, flip, normalise: one image (C, H, W)."""
    height, width, channels = image.shape
    padded = np.zeros((height + 2 * work.padding, width + 2 * work.padding, channels))
    padded[work.padding : work.padding + height, work.padding : work.padding + width] = image
    cropped = padded[row : row + height, column : column + width]
    cropped = cropped[:, ::-1] if flip else cropped
    return ((cropped / 255 - work.mean) / work.std).transpose(2, 0, 1)


def test_the_work_of_an_experiment(experiment):
    own = experiment({"flip": True, "crop": 2})
    dataset = own.data.load(None, 0)
    work = Work.of(own, None, tf32=True)
    for kind, found in (
        ("train", (work.images, work.labels)),
        ("test", (work.test_images, work.test_labels)),
    ):
        wanted = getattr(dataset, kind)
        np.testing.assert_array_equal(found[0], wanted.images)
        np.testing.assert_array_equal(found[1], wanted.labels)
    parts = own.partition.assign(dataset, 0)
    assert [part.tolist() for part in work.parts] == [part.tolist() for part in parts]
    assert (work.padding, work.flip, work.tf32, work.device.type) == (2, True, True, "cpu")
    assert (work.batch_size, work.epochs, work.lr) == (8, 2, 0.3)
    assert (work.momentum, work.weight_decay, work.clients_per_round) == (0.7, 0.02, 3)
    pixels = dataset.train.images / 255
    np.testing.assert_allclose([work.mean[0], work.std[0]], [pixels.mean(), pixels.std()])


def test_every_network_starts_as_the_experiments(experiment):
    own = experiment()
    work = Work.of(own, None, tf32=False)
    first, second = work.network(), work.network()
    with torch.no_grad():
        first.head.weight.zero_()
    wanted, found = Simulation(own).setup.blueprint.start().state_dict(), second.state_dict()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("share", [0.5, 2, 1.0])
def test_clients_are_those_of_our_engine(experiment, share):
    own = experiment(clients_per_round=share)
    work = Work.of(own, None, tf32=False)
    rounds = [work.clients(number) for number in range(20)]
    assert rounds == [sample(own, number, 6) for number in range(20)]
    assert share == 1.0 or len({tuple(clients) for clients in rounds}) > 5


@pytest.mark.parametrize(
    ("source", "settings", "remedy"),
    [
        ({}, {"algorithm": "fedprox"}, "algorithm=fedavg"),
        ({}, {"objective": "vfa"}, "objective=plain"),
        ({"cutout": 2}, {}, "data.cutout=0"),
    ],
)
def test_other_work_is_refused(experiment, complains, source, settings, remedy):
    own = experiment(source, **settings)
    with complains(remedy):
        Work.of(own, None, tf32=False)


def test_an_epoch_is_each_image_of_the_client_once(make_work):
    work = make_work(batch_size=4)
    data = Data(work)
    orders = []
    for _ in range(2):
        batches = list(data.epoch(1))
        assert [len(images) for images, _ in batches] == [4, 4, 1]
        images = torch.cat([images for images, _ in batches]).numpy()
        labels = torch.cat([labels for _, labels in batches])
        wanted = [reference(work, image, 0, 0, False) for image in work.images]
        order = [int(np.abs(wanted - image).max((1, 2, 3)).argmin()) for image in images]
        np.testing.assert_allclose(images, np.array(wanted)[order], atol=1e-5)
        assert sorted(order) == sorted(work.parts[1])
        assert labels.tolist() == work.labels[order].tolist()
        orders.append(order)
    assert orders[0] != orders[1] and orders[0] != sorted(orders[0])


def test_augmented_images_are_crops_and_flips_of_the_right_image(make_work):
    """Every image of many epochs is one of 2 · 5² views of an image with its label, and all views occur."""
    work = make_work(padding=2, flip=True, batch_size=5)
    data, part = Data(work), work.parts[0]
    views = list(itertools.product(part, range(5), range(5), (False, True)))
    wanted = np.array([reference(work, work.images[i], row, column, flip) for i, row, column, flip in views])
    counts = np.zeros(len(views), int)
    for _ in range(500):
        for images, labels in data.epoch(0):
            assert images.is_contiguous(memory_format=torch.channels_last)
            for image, label in zip(images.numpy(), labels.tolist(), strict=True):
                (match,) = np.flatnonzero(np.abs(wanted - image).max((1, 2, 3)) < 1e-5)
                assert label == work.labels[views[match][0]]
                counts[match] += 1
    assert counts.reshape(6, -1).sum(1).tolist() == [500] * 6
    # 60 of each row, column and direction are expected of 3,000; 5 standard deviations of 600 draws are 110
    by_view = counts.reshape(6, 5, 5, 2)
    np.testing.assert_allclose(by_view.sum((0, 2, 3)), 600, atol=110)
    np.testing.assert_allclose(by_view.sum((0, 1, 3)), 600, atol=110)
    np.testing.assert_allclose(by_view.sum((0, 1, 2)), 1500, atol=140)
    # row, column and flip are drawn apart: 60 ± 5 · √60 of each combination
    np.testing.assert_allclose(by_view.sum(0), 60, atol=39)


class Brightness(nn.Module):
    """Says 1 where an image's first channel is above the mean and 0 elsewhere, but 2 while training."""

    def forward(self, images):
        said = 2 * torch.ones(len(images)) if self.training else images[:, 0].mean((1, 2)) > 0
        return {}, torch.eye(3)[said.long()]


def test_accuracy_is_the_share_of_all_test_images(make_work):
    rng = np.random.default_rng(3)
    images, labels = rng.integers(0, 256, (1203, 2, 2, 3), np.uint8), rng.integers(0, 2, 1203)
    work = make_work(test_images=images, test_labels=labels, mean=np.array([0.4037, 0.5, 0.5]))  # no ties
    bright = images[..., 0].mean((1, 2)) / 255 > 0.4037
    assert Data(work).accuracy(Brightness().train()) == (bright == labels).mean()


def test_a_round_counts_the_images_of_its_clients_in_each_epoch(make_work):
    work = make_work(epochs=3, clients_per_round=2, seed=1)
    seen = []
    rounds = [work.measure(number, seen.append, lambda: 0.25) for number in range(4)]
    assert seen == [work.clients(number) for number in range(4)]
    assert [one.images for one in rounds] == [3 * sum((6, 9, 15)[c] for c in clients) for clients in seen]
    assert {one.accuracy for one in rounds} == {0.25} and all(one.seconds > 0 for one in rounds)


def switches():
    backends = torch.backends
    return backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32, backends.cudnn.benchmark


@pytest.mark.parametrize("tf32", [True, False])
def test_switches_are_set_for_a_round_and_set_back(make_work, tf32):
    before = switches()

    def fail(clients):
        assert switches() == (tf32, tf32, True)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        make_work(tf32=tf32).measure(0, fail, lambda: 0.0)
    assert switches() == before


def test_kernels_are_timed_for_full_batches_alone(make_work):
    work = make_work(batch_size=4)
    with work.switches():
        timed = [torch.backends.cudnn.benchmark for _ in Data(work).epoch(1)]
        assert [*timed, torch.backends.cudnn.benchmark] == [True, True, False, True]
