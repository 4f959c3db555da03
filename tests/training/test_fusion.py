"""Steps with fewer and larger operations; what stands in for our kernels are operations of PyTorch."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vhl.training.fusion import compiled_pieces, fused_pieces
from vhl.training.stream import Stream

from vhl.algorithms.fedavg import FedAvg
from vhl.algorithms.fedprox import FedProx
from vhl.algorithms.scaffold import SCAFFOLD
from vhl.data.images import ImageSet, ImageStream
from vhl.objectives.naive import Naive
from vhl.objectives.plain import Plain
from vhl.objectives.vhl import VHL
from vhl.training import fusion
from vhl.training.precision import Precision
from vhl.training.step import plain_pieces
from vhl.training.task import Job
from vhl.training.trainer import Trainer

CPU = torch.device("cpu")


def a_stream(count, dtype=torch.float32, **settings):
    """So many images of 8×8 pixels, their labels 0, 1, 2, 0 and so on."""
    images = np.random.default_rng(count).integers(0, 256, (count, 8, 8, 2), np.uint8)
    statistics = np.zeros(2), np.ones(2)
    return Stream(
        ImageSet(images, np.arange(count) % 3), ImageStream(**settings), statistics, CPU, dtype=dtype
    )


# --- the compiler --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("network", "expected"), [("batch", False), ("group", True), ("foreign", True)])
def test_a_network_is_compiled_where_there_is_no_kernel(monkeypatch, small_task, network, expected):
    monkeypatch.setattr(fusion, "compiled", lambda function: ("compiled", function))
    task = small_task(network)
    plain, module = plain_pieces(task), task.build()
    found = compiled_pieces(plain)
    assert found.judge == ("compiled", plain.judge)
    assert found.network(module) == (("compiled", module) if expected else module)
    assert found.gather is plain.gather and found.update is plain.update


# --- our kernels ---------------------------------------------------------------------------------------


@pytest.fixture
def stand_ins(monkeypatch):
    """The two kernels as operations of PyTorch, and who was told to use that of batch normalisation."""

    def make_images(stream, counter, index, chance, out):
        step = int(counter)
        images = stream.batch(index[step], {name: rows[step] for name, rows in chance.items()})
        out.copy_(images.permute(0, 2, 3, 1))
        return stream.labels[index[step]]

    def sgd(weights, gradient, momentum, lowered, counter, rate, *, decay, keep):
        momentum.mul_(keep).add_(gradient + decay * weights)
        weights.sub_(rate * momentum)
        if lowered is not None:
            lowered.copy_(weights)
        counter.add_(1)

    fused = []
    monkeypatch.setitem(
        sys.modules, "vhl.training._kernels", SimpleNamespace(make_images=make_images, sgd=sgd)
    )
    monkeypatch.setattr(fusion, "fuse", fused.append)
    return fused


class _Noisy(Naive):
    """Virtual images, and chance of its own in every step."""

    def draws(self, rng, steps, batch, classes, features):
        return {"noise": rng.standard_normal((steps, batch), np.float32)}

    def loss(self, batch):
        noise = batch.draws["noise"] * batch.logits[: len(batch.labels), 0]
        return {**super().loss(batch), "noise": (noise * batch.weights).sum()}


@pytest.mark.parametrize("precision", ["fp64", "bf16"])
@pytest.mark.parametrize("objective", [Plain(), VHL(virtual_batch=5), _Noisy()])
@pytest.mark.parametrize("algorithm", [FedAvg(), FedProx(mu=0.5), SCAFFOLD()])
def test_fused_steps_are_plain_steps(
    small_task, server_of, train, stand_ins, algorithm, objective, precision
):
    """Whatever the kernels take over, the rest of the step is the same: a whole client agrees."""
    numerics = Precision(CPU, precision)
    natural, virtual = (a_stream(n, numerics.dtype, crop=2, flip=True, cutout=3) for n in (20, 9))
    training = {"batch_size": 4, "epochs": 2, "weight_decay": 0.1, "momentum": 0.5, "keep_momentum": True}
    task = small_task(virtual=virtual, objective=objective, algorithm=algorithm, training=training)
    task = replace(task, natural=natural, numerics=numerics)
    start = server_of(task)
    own = {"control": start.parameters / 10} if algorithm.name == "scaffold" else {}
    server = replace(start, state={name: vector / 3 for name, vector in own.items()})
    job = Job(0, 0, np.arange(15), 0.1, own)
    plain = plain_pieces(task)
    trainer = Trainer(task, fused_pieces(plain, task))
    assert stand_ins == [trainer.model.module]
    found, expected = train(trainer, job, server), train(Trainer(task, plain), job, server)
    tolerance = {"rtol": 1e-9, "atol": 1e-12} if precision == "fp64" else {"rtol": 0.05, "atol": 0.02}
    for one, other in (
        (found.update.parameters, expected.update.parameters),
        (found.update.buffers, expected.update.buffers),
        (found.state["engine.momentum"], expected.state["engine.momentum"]),
    ):
        torch.testing.assert_close(one, other, **tolerance)
    assert set(found.totals) == set(expected.totals)
    for name in found.totals:
        torch.testing.assert_close(found.totals[name], expected.totals[name], **tolerance)


def test_images_are_made_where_the_network_reads_them(small_task, stand_ins):
    """Natural ones first, channels last, in the type of the network; labels beside them."""
    task = small_task(virtual=a_stream(9, crop=0), objective=VHL(virtual_batch=5))
    task = replace(task, natural=a_stream(20, crop=0), precision=Precision(CPU, "bf16"))
    plan = {name: torch.from_numpy(rows) for name, rows in task.plan(0, 0, np.arange(20)).items()}
    plain = plain_pieces(task)
    for step in (0, 3):
        counter = torch.tensor([step])
        images, draws = fused_pieces(plain, task).gather(plan, counter)
        expected, expected_draws = plain.gather(plan, counter)
        assert images.equal(expected) and images.dtype == torch.bfloat16 and images.shape == (9, 2, 8, 8)
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert expected.is_contiguous(memory_format=torch.channels_last)
        assert draws["labels"].equal(plan["index"][step] % 3)
        assert draws["virtual_labels"].equal(plan["virtual"][step] % 3)
        assert set(draws) == set(expected_draws)


@pytest.mark.parametrize(("algorithm", "times"), [(FedAvg(), 0), (FedProx(), 0), (SCAFFOLD(), 1)])
def test_weights_that_are_corrected_are_lowered_again(
    small_task, server_of, begin, stand_ins, algorithm, times
):
    """The kernel writes the shorter copy itself; only what an algorithm changes after it has to be redone."""
    task = replace(small_task(algorithm=algorithm), precision=Precision(CPU, "bf16"))
    trainer = Trainer(task, fused_pieces(plain_pieces(task), task))
    model, refreshed = trainer.model, []
    refresh = model.refresh
    model.refresh = lambda: refreshed.append(refresh())
    ones = torch.ones_like(model.parameters)
    begin(trainer, Job(0, 0, np.arange(20), 0.1, {"control": ones}), server_of(task, control=5 * ones))
    refreshed.clear()
    trainer.step()
    assert len(refreshed) == times
    assert model.lowered.equal(model.parameters.bfloat16())
