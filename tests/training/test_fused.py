"""Steps with fewer and larger operations; what stands in for our kernels are operations of PyTorch."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vhl.algorithms.fedavg import FedAvg
from vhl.algorithms.fedprox import FedProx
from vhl.algorithms.scaffold import SCAFFOLD
from vhl.data.images import ImageSet, ImageStream
from vhl.models.layers.norm import BatchNorm
from vhl.objectives.naive import Naive
from vhl.objectives.plain import Plain
from vhl.objectives.vhl import VHL
from vhl.objectives.vhl_light import VHLLight
from vhl.training.fused import FusedStep, has_kernels
from vhl.training.mosaics import MosaicStream
from vhl.training.precision import Precision
from vhl.training.step import Step
from vhl.training.streams import Stream
from vhl.training.task import MOMENTUM, Job
from vhl.training.trainer import Trainer

CPU = torch.device("cpu")


def a_stream(count, dtype=torch.float32, tiles=1, **settings):
    """So many images of 8×8 pixels, or tiles of them; their labels are 0, 1, 2, 0 and so on."""
    images = np.random.default_rng(count).integers(0, 256, (count, 8 // tiles, 8 // tiles, 2), np.uint8)
    held = ImageSet(images, np.arange(count) % 3), ImageStream(**settings), (np.zeros(2), np.ones(2)), CPU
    if tiles == 1:
        return Stream(*held, dtype=dtype)
    return MosaicStream(*held, tiles=tiles, of_one_class=False, dtype=dtype)


class OnCPU(FusedStep):
    """Batch normalisation stays PyTorch's."""

    def network(self, module):
        found = super().network(module)
        for layer in module.modules():
            if isinstance(layer, BatchNorm):
                assert layer.fused
                layer.fused = False
        return found


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    """The other two kernels as operations of PyTorch."""

    def make_images(stream, counter, index, choices, out):
        step, count = int(counter), len(out)
        index, own = index[step][:count], {name: rows[step][:count] for name, rows in choices.items()}
        out.copy_(Stream.batch(stream, index, own).permute(0, 2, 3, 1))
        return stream.labels[index]

    def sgd(weights, gradient, momentum, lowered, counter, rate, *, decay, keep):
        momentum.mul_(keep).add_(gradient + decay * weights)
        weights.sub_(rate * momentum)
        if lowered is not None:
            lowered.copy_(weights)
        counter.add_(1)

    kernels = SimpleNamespace(make_images=make_images, sgd=sgd)
    monkeypatch.setitem(sys.modules, "vhl.training._kernels", kernels)


class _Noisy(Naive):
    """Virtual images, and chance of its own in every step."""

    def loss(self, batch):
        natural = batch.logits[: len(batch.labels), 0]
        noise = batch.normal((batch.size,))[: len(natural)]
        return {**super().loss(batch), "noise": (noise * natural * batch.weights).sum()}


@pytest.mark.parametrize("weigh", [False, True])
@pytest.mark.parametrize("precision", ["fp64", "bf16"])
@pytest.mark.parametrize("objective", [Plain(), VHL(virtual_batch=5), _Noisy(), VHLLight(virtual_batch=8)])
@pytest.mark.parametrize("algorithm", [FedAvg(), FedProx(mu=0.5), SCAFFOLD()])
def test_fused_steps_are_plain_steps(small_task, server_of, train, algorithm, objective, precision, weigh):
    """Whatever the kernels take over, the rest of the step is the same: a whole client agrees."""
    tiles = objective.virtual_images(4).tiles if objective.uses_virtual else 1
    kind = Precision(CPU, precision)
    settings = {"dtype": kind.dtype, "crop": 2, "flip": True, "cutout": 4}
    task = small_task(
        precision=kind,
        natural=a_stream(20, **settings),
        virtual=a_stream(9, tiles=tiles, **settings),
        objective=objective,
        algorithm=algorithm,
        training={"batch_size": 4, "epochs": 2, "weight_decay": 0.1, "momentum": 0.5, "keep_momentum": True},
    )
    start = server_of(task)
    own = {"control": start.parameters / 10} if algorithm.name == "scaffold" else {}
    server = replace(start, state={name: vector / 3 for name, vector in own.items()})
    job = Job(0, 0, torch.arange(15), 0.1, own)
    outcomes = []
    for step in (OnCPU, Step):
        trainer = Trainer(step(task))
        outcomes.append(train(trainer, job, server, partial(trainer.step, weigh=True) if weigh else None))
    found, expected = outcomes
    tolerance = {"rtol": 1e-9, "atol": 1e-12} if precision == "fp64" else {"rtol": 0.05, "atol": 0.02}
    for one, other in (
        (found.update.parameters, expected.update.parameters),
        (found.update.buffers, expected.update.buffers),
        (found.state[MOMENTUM], expected.state[MOMENTUM]),
        (found.totals, expected.totals),
    ):
        torch.testing.assert_close(one, other, **tolerance)


@pytest.mark.parametrize("rows", [None, 1, 3])
@pytest.mark.parametrize("objective", [VHL(virtual_batch=5), VHLLight(virtual_batch=8), Plain()])
def test_images_are_made_where_the_network_reads_them(small_task, objective, rows):
    """Natural ones first, channels last, in the type of the network; labels and weights beside them."""
    virtual = objective.virtual_images(4)
    others = None if virtual is None else a_stream(9, tiles=virtual.tiles, crop=0)
    natural, precision = a_stream(20, crop=2), Precision(CPU, "bf16")
    task = small_task(natural=natural, virtual=others, objective=objective, precision=precision)
    (schedule,) = task.schedules([Job(0, 0, torch.arange(20), 0.1, {})])
    for step in (0, 3):
        counter = torch.tensor([step])
        images, used = FusedStep(task).gather(schedule, counter, rows)
        expected, expected_used = Step(task).gather(schedule, counter, rows)
        count = (rows or 4) + (0 if virtual is None else virtual.places)
        assert images.equal(expected) and images.dtype == torch.bfloat16 and images.shape == (count, 2, 8, 8)
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert expected.is_contiguous(memory_format=torch.channels_last)
        assert used["labels"].equal(schedule["index"][step][:rows] % 3)
        if virtual is not None:
            assert used["virtual_labels"].equal(schedule["virtual"][step] % 3)
        assert set(used) == set(expected_used)
        assert all(used[name].equal(expected_used[name]) for name in used)


@pytest.mark.parametrize(("algorithm", "times"), [(FedAvg(), 0), (FedProx(), 0), (SCAFFOLD(), 1)])
def test_weights_that_are_corrected_are_lowered_again(small_task, server_of, begin, algorithm, times):
    """The kernel writes the shorter copy itself; only what an algorithm changes after it has to be redone."""
    trainer = Trainer(OnCPU(small_task(algorithm=algorithm, precision=Precision(CPU, "bf16"))))
    model, refreshed = trainer.model, []
    refresh = model.refresh
    model.refresh = lambda: refreshed.append(refresh())
    ones = torch.ones_like(model.parameters)
    job = Job(0, 0, torch.arange(20), 0.1, {"control": ones})
    begin(trainer, job, server_of(trainer.task, control=5 * ones))
    refreshed.clear()
    trainer.step()
    assert len(refreshed) == times
    assert model.lowered.equal(model.parameters.bfloat16())


@pytest.mark.parametrize(
    ("network", "expected"), [("batch", True), ("group", False), ("foreign", False), ("pytorch", False)]
)
def test_kernels_are_those_of_our_batch_norm(small_task, network, expected):
    assert has_kernels(small_task(network).build()) == expected
