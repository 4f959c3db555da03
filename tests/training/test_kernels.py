"""Kernels against the operations of PyTorch that they replace; Triton's interpreter runs them on a CPU."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU or TRITON_INTERPRET=1", allow_module_level=True)

from vhl.algorithms.base import Server
from vhl.chance import Purpose, words
from vhl.data.images import ImageSet, ImageStream
from vhl.models.cnn import CNN
from vhl.objectives.plain import Plain
from vhl.objectives.vhl_light import VHLLight
from vhl.training._kernels import make_images, sgd
from vhl.training.fused import FusedStep
from vhl.training.mosaics import MosaicStream
from vhl.training.precision import Precision
from vhl.training.step import Step
from vhl.training.streams import Stream
from vhl.training.task import Job
from vhl.training.trainer import Trainer

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("augment", [True, False])
@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ((6, 7, 3), {"crop": 2, "flip": True, "cutout": 3}),
        ((20, 20, 3), {"crop": 0, "flip": True}),  # more than one program an image
        ((5, 4, 1), {"crop": 1, "cutout": 2}),
        ((32, 32, 3), {"crop": 4, "flip": True}),
    ],
)
def test_images_are_the_streams(shape, settings, augment):
    rng = np.random.default_rng(3)
    images = ImageSet(rng.integers(0, 256, (9, *shape), np.uint8), rng.integers(0, 5, 9))
    statistics = rng.random(shape[-1]), 0.1 + rng.random(shape[-1])
    stream = Stream(images, ImageStream(**settings), statistics, DEVICE, augment=augment, dtype=torch.float64)
    index = torch.from_numpy(rng.integers(0, 9, (4, 6))).to(DEVICE)
    places = torch.arange(24, device=DEVICE).view(4, 6)
    choices = stream.choices(words(1, Purpose.NATURAL, 2, 3, 0, places))
    assert bool(choices) == augment
    for step, count in ((0, 6), (3, 6), (0, 1), (3, 4)):  # a short batch uses the first samples of a row
        out = torch.full((8, *shape), 7.0, dtype=torch.float64, device=DEVICE)
        counter = torch.tensor([step], device=DEVICE)
        labels = make_images(stream, counter, index, choices, out[1 : 1 + count])
        own = {name: rows[step, :count] for name, rows in choices.items()}
        expected = stream.batch(index[step, :count], own)
        found = out[1 : 1 + count].permute(0, 3, 1, 2)
        torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-14)
        assert labels.equal(stream.labels[index[step, :count]])
        assert bool((out[0] == 7).all()) and bool((out[1 + count :] == 7).all())


@pytest.mark.parametrize(
    ("dtype", "lower"), [(torch.float32, True), (torch.float32, False), (torch.float64, False)]
)
@pytest.mark.parametrize("count", [3, 1024, 5000])
def test_gradient_descent_is_torchs(count, dtype, lower):
    generator = torch.Generator().manual_seed(count)
    start, momentum, gradient = (torch.randn(count, dtype=dtype, generator=generator) for _ in range(3))
    plain = start.clone().requires_grad_()
    optimizer = torch.optim.SGD([plain], 0.3, momentum=0.8, weight_decay=0.05)
    plain.grad = gradient.clone()
    optimizer.state[plain]["momentum_buffer"] = momentum.clone()
    optimizer.step()
    weights, ours = start.to(DEVICE), momentum.to(DEVICE)
    lowered = torch.zeros(count, dtype=torch.bfloat16, device=DEVICE) if lower else None
    counter, rate = torch.tensor([4], device=DEVICE), torch.tensor(0.3, dtype=dtype, device=DEVICE)
    sgd(weights, gradient.to(DEVICE), ours, lowered, counter, rate, decay=0.05, keep=0.8)
    tolerance = dict.fromkeys(("rtol", "atol"), 1e-6 if dtype == torch.float32 else 1e-14)
    torch.testing.assert_close(weights.cpu(), plain.detach(), **tolerance)
    torch.testing.assert_close(ours.cpu(), optimizer.state[plain]["momentum_buffer"], **tolerance)
    assert counter.item() == 5
    if lowered is not None:
        torch.testing.assert_close(lowered.to(dtype), weights, rtol=2**-7, atol=0)


@pytest.mark.parametrize("objective", [Plain(), VHLLight(virtual_batch=8)])
def test_a_client_with_kernels_is_a_client_without(make_task, objective):
    """Six images in batches of 4: short ones are cut, or their fillers weigh nothing."""

    def stream(count, tiles=1):
        images = np.random.default_rng(count).integers(0, 256, (count, 8 // tiles, 8 // tiles, 2), np.uint8)
        held = ImageSet(images, np.arange(count) % 3), ImageStream(crop=2, flip=True, cutout=4)
        options = {"dtype": torch.float64} | ({} if tiles == 1 else {"tiles": tiles, "of_one_class": False})
        kind = Stream if tiles == 1 else MosaicStream
        return kind(*held, (np.zeros(2), np.ones(2)), DEVICE, **options)

    def build():
        torch.manual_seed(2)
        return CNN(width=4).build(6, 2, (8, 8))

    virtual, precision = stream(9, 2) if objective.uses_virtual else None, Precision(DEVICE, "fp64")
    task = make_task(
        build,
        stream(20),
        virtual=virtual,
        objective=objective,
        precision=precision,
        training={"batch_size": 4, "momentum": 0.5, "weight_decay": 0.1},
        sizes=(6,),
    )
    job, found = Job(3, 1, torch.arange(6, device=DEVICE), 0.1, {}), []
    for step, weigh in ((Step, False), (FusedStep, False), (FusedStep, True)):
        trainer = Trainer(step(task))
        server = Server(trainer.model.parameters.clone(), trainer.model.buffers.clone())
        trainer.begin(job, task, server, *task.schedules([job]))
        for _ in range(2):
            trainer.step(weigh=True) if weigh else trainer.next()
        found.append(trainer.finish(job, task))
    for kernels in found[1:]:
        for name in ("parameters", "buffers"):
            ours, plain = getattr(kernels.update, name), getattr(found[0].update, name)
            torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(kernels.totals, found[0].totals, rtol=1e-9, atol=1e-11)
