"""What a method may do on the server between rounds: a method of a user's own, and the handle it is given."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vhl.algorithms.base import Server, Stage, Update
from vhl.algorithms.fedavg import FedAvg
from vhl.chance import Purpose, words
from vhl.rounds.clients import Order
from vhl.rounds.simulation import Simulation
from vhl.virtual.dataset import LabelledDataset
from vhl.virtual.noise import Noise
from vhl.virtual.sets import virtual_set

TAUGHT = '''
from dataclasses import replace

import torch
from pydantic import Field

from vhl.algorithms.fedavg import FedAvg
from vhl.virtual.noise import Noise


class Taught(FedAvg):
    """FedAvg, then steps of gradient descent towards the logits of the first client's model."""

    steps: int = Field(3, ge=1, description="steps after each round")

    def prepare(self, stage):
        images = stage.images(Noise(per_class=5, crop=0, flip=False), 4, self.steps)
        said = torch.zeros((), dtype=stage.dtype, device=stage.device)
        stage.kept["taught"] = stage.model(), stage.model(), images, said

    def after_round(self, server, updates, stage):
        student, teacher, images, said = stage.kept["taught"]

        def step():
            batch, _ = images.next()
            (wanted,) = stage.all_logits([teacher], batch)
            loss = (stage.logits(student, batch) - wanted).square().mean()
            student.differentiate(loss)
            student.parameters.sub_(student.gradient, alpha=0.1)
            student.refresh()
            said.copy_(loss.detach())

        with stage.working():
            teacher.load(updates[0].parameters, updates[0].buffers)
            teacher.module.eval()
            stage.training(student)
            images.draw(0, self.steps)
            step = stage.static(step, "Steps of teaching")
            student.load(server.parameters, server.buffers)
            images.draw(0, self.steps)
            for _ in range(self.steps):
                step()
            parameters, buffers = student.parameters.clone(), student.buffers.clone()
        stage.report(4 * self.steps, taught=self.steps)
        stage.report(last_loss=float(said))
        return replace(server, parameters=parameters, buffers=buffers)
'''


@pytest.fixture
def taught(tmp_path: Path, digit_simulation: Callable[..., Simulation]) -> Callable[..., Simulation]:
    (tmp_path / "taught.py").write_text(TAUGHT, encoding="utf-8")

    def make(**settings: Any) -> Simulation:
        algorithm = f"{tmp_path / 'taught.py'}:Taught"
        return digit_simulation(algorithm=algorithm, engine={"precision": "fp64"}, **settings)

    return make


def test_a_method_of_ones_own_trains_the_average(taught: Any, digit_simulation: Any, tmp_path: Path) -> None:
    """Against networks, images and gradients of PyTorch alone."""
    made, plain = taught(), digit_simulation(engine={"precision": "fp64"})
    flight = plain.clients.train([Order(client, 0, 0.01, {}) for client in range(4)], plain.state.server)
    while (outcomes := flight.poll()) is None:
        pass
    client, layout = outcomes[0].update, plain.model.layout
    plain.run_round()
    average = plain.state.server
    student, teacher = (plain.setup.blueprint.build().double() for _ in range(2))
    student.load_state_dict(layout.unpack(average.parameters, average.buffers))
    teacher.load_state_dict(layout.unpack(client.parameters, client.buffers))
    teacher.eval()
    noise = virtual_set(Noise(per_class=5), 4, (8, 8, 1), 0, tmp_path).images.transpose(0, 3, 1, 2)
    mean, std = (own.item() for own in plain.setup.data.statistics)
    pixels = torch.from_numpy((noise / 255 - mean) / std)
    order = words(0, Purpose.SERVER_ORDER, 1, 0, 0, torch.arange(20))[0].argsort()
    for batch in pixels[order][:12].split(4):
        with torch.no_grad():
            wanted = teacher(batch)[1]
        loss = (student(batch)[1] - wanted).square().mean()
        gradients = torch.autograd.grad(loss, list(student.parameters()))
        with torch.no_grad():
            for weight, gradient in zip(student.parameters(), gradients, strict=True):
                weight -= 0.1 * gradient

    record = made.run_round()
    found = made.named_tensors()
    for name, tensor in student.state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-10, atol=1e-12)
    assert record.server == {"taught": 3, "last_loss": pytest.approx(loss.item(), rel=1e-9)}
    assert record.samples == 80 + 12
    assert not average.parameters.equal(made.state.server.parameters)


def test_it_goes_on_from_a_state_and_with_statistics_that_are_frozen(
    taught: Any, assert_same_run: Any
) -> None:
    """What is kept in memory is made again."""
    settings = {"rounds": 3, "training": {"batch_size": 8, "freeze_batch_norm": 1}}
    whole, part = taught(**settings), taught(**settings)
    records = [whole.run_round() for _ in range(2)]
    part.run_round()
    rest = taught(state=part.state, **settings)
    assert rest.run_round().server == records[1].server
    assert_same_run(rest, whole)
    torch.testing.assert_close(whole.state.server.buffers, part.state.server.buffers, rtol=1e-12, atol=1e-14)


def test_the_record_has_what_the_stage_reports_or_nothing(digit_simulation: Any) -> None:
    assert [record.server for record in digit_simulation()] == [None, None]


# --- the handle ----------------------------------------------------------------------------------------


@pytest.fixture
def ask(digit_simulation: Any, small_digits: Any) -> Callable[..., list[Any]]:
    """What a function finds with the stage after each round."""

    def rounds(question: Callable[[Stage], Any], **settings: Any) -> list[Any]:
        answers: list[Any] = []

        class Asks(FedAvg):
            def after_round(self, server: Server, updates: list[Update], stage: Stage) -> Server:
                answers.append(question(stage))
                return server

        data = small_digits(validation=0.25, mean=(0.5,), std=(0.3,))
        made = digit_simulation(algorithm=Asks(), data=data, **settings)
        for _ in made:
            pass
        return answers

    return rounds


def test_it_knows_the_round(ask: Any) -> None:
    training = {"batch_size": 8, "freeze_batch_norm": 1}
    found = ask(lambda stage: (stage.round, stage.last, stage.frozen), rounds=3, training=training)
    assert found == [(1, False, False), (2, False, True), (3, True, True)]


def test_chance_is_of_the_seed_the_round_and_the_number(ask: Any) -> None:
    def draw(stage: Stage) -> list[float]:
        before = torch.get_rng_state()
        found = [stage.generator().random(), stage.generator().random()]
        for number in (0, 0, 1):
            with stage.chance(number):
                found.append(stage.noise(3).double().sum().item())
        assert torch.get_rng_state().equal(before)  # the caller's chance is left alone
        return found

    (first, second), again = ask(draw), ask(draw)
    other, _ = ask(draw, seeds={"batches": 1})
    assert again == [first, second]
    assert all(own[0] == own[1] and own[2] == own[3] for own in (first, second, other))
    assert len({number for own in (first, second, other) for number in own}) == 3 * 3


def test_noise_is_normal_and_has_the_shape_of_images(ask: Any) -> None:
    for images in ask(lambda stage: stage.noise(500), engine={"precision": "fp64"}):
        assert images.shape == (500, 1, 8, 8) and images.dtype == torch.float64
        assert abs(float(images.mean())) < 5 / 32_000**0.5 and abs(float(images.var()) - 1) < 0.04


def _batches(*draws: tuple[int, int], **options: Any) -> Callable[[Stage], Tensor]:
    """Batches of eight, of stretches from a first step on, of so many steps each."""

    def get(stage: Stage) -> Tensor:
        usual = {"per_class": 10, "crop": 0, "flip": False}
        images = stage.images(Noise(**{**usual, **options}), 8, 10)
        found = []
        for first, count in draws:
            images.draw(first, count)
            found += [images.next()[0] for _ in range(count)]
        return torch.cat(found)

    return get


def test_images_come_in_passes_each_in_another_order(ask: Any, tmp_path: Path) -> None:
    """Normalised as the images that clients train on."""
    first, second = ask(_batches((0, 10)))
    noise = virtual_set(Noise(per_class=10), 4, (8, 8, 1), 0, tmp_path).images.transpose(0, 3, 1, 2)
    known = torch.from_numpy(((noise / 255 - 0.5) / 0.3).astype(np.float32))

    def which(images: Tensor) -> list[int]:
        near = (images[:, None] - known[None]).abs().amax((2, 3, 4)) < 1e-5
        assert (near.sum(1) == 1).all()
        return near.int().argmax(1).tolist()

    one, other = which(first), which(second)
    for own in (one, other):
        assert sorted(own[:40]) == sorted(own[40:]) == list(range(40))
    orders = [one[:40], one[40:], other[:40], other[40:], list(range(40))]
    assert len(set(map(tuple, orders))) == 5


def test_stretches_are_parts_of_one_sequence(ask: Any) -> None:
    """Also of what is cropped and flipped, which differs from image to image."""
    found = []
    for options in ({}, {"crop": 2}, {"flip": True}):
        (whole,) = ask(_batches((0, 9), **options), rounds=1)
        (parts,) = ask(_batches((0, 4), (4, 5), **options), rounds=1)
        assert whole.equal(parts)
        found.append(whole)
    changed = [(own != found[0]).flatten(1).any(1).float().mean() for own in found[1:]]
    assert changed[0] > 0.7 and 0.2 < changed[1] < 0.8


def test_labels_are_dropped_so_that_a_dataset_has_all_its_classes(ask: Any) -> None:
    """Four natural classes; ten of another dataset are welcome, or as many as are asked for."""

    def classes(options: dict[str, Any]) -> Callable[[Any], int]:
        dataset = LabelledDataset(source="digits", **options)
        return lambda stage: len(stage.images(dataset, 4, 4)._stream.labels.unique())

    assert ask(classes({}), rounds=1) == [10] and ask(classes({"classes": 3}), rounds=1) == [3]


@pytest.mark.parametrize(("says", "accuracy"), [([0], 0.3), ([5, 1], 0.0), ([1, 5], 0.5), ([2], 0.15)])
def test_accuracy_is_on_validation_images_and_over_all_outputs(
    digit_simulation: Any, small_digits: Any, says: list[int], accuracy: float
) -> None:
    """Of a network that says one thing of every image; the virtual twin of class 1 is output 5."""
    made = digit_simulation(objective="vhl", data=small_digits(validation=0.25))
    made.setup.validation.labels = torch.tensor([1] * 10 + [0] * 6 + [2] * 3 + [3])
    made.setup.test.labels = torch.full_like(made.setup.test.labels, 2)
    model = made.stage.model()
    bias = model.layout.views(model.parameters, model.buffers)["head.bias"]
    for rank, output in enumerate(says):
        bias[output] = 1e6 / (1 + rank)
    assert made.stage.accuracy(model) == pytest.approx(accuracy)
    assert made.stage.can_validate() and not digit_simulation().stage.can_validate()


def test_logits_are_the_networks(digit_simulation: Any) -> None:
    """In the run's precision; several networks answer each for itself, without gradients."""
    made = digit_simulation(engine={"precision": "bf16"})
    stage, images = made.stage, torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    models = [stage.model() for _ in range(3)]
    for number, model in enumerate(models):
        model.load(model.parameters * (1 + number), model.buffers)
        model.module.eval()
    networks = [made.setup.blueprint.build().eval() for _ in models]
    for model, network in zip(models, networks, strict=True):
        network.load_state_dict(model.layout.unpack(model.parameters, model.buffers))
    found = stage.all_logits(models, images)
    for own, network in zip(found, networks, strict=True):
        assert own.dtype == torch.float32 and not own.requires_grad
        expected = network(images)[1].detach()
        assert not own.equal(expected)  # by 2⁻⁸ or so
        assert float((own - expected).norm()) < 0.05 * float(expected.norm())
    assert stage.logits(models[1], images).requires_grad
    assert math.isfinite(float(found[2].sum())) and not found[0].equal(found[2])


def test_images_have_labels_and_are_the_runs_own_where_none_are_named(ask: Any, tmp_path: Path) -> None:
    def first_batch(stage: Stage) -> tuple[Tensor, Tensor]:
        images = stage.images(None, 40, 1)
        images.draw(0, 1)
        return images.next()

    (pixels, labels), _ = ask(
        first_batch, virtual={"name": "noise", "per_class": 10, "crop": 0, "flip": False}
    )
    made = virtual_set(Noise(per_class=10), 4, (8, 8, 1), 0, tmp_path)
    known = torch.from_numpy(((made.images.transpose(0, 3, 1, 2) / 255 - 0.5) / 0.3).astype(np.float32))
    which = (pixels[:, None] - known[None]).abs().amax((2, 3, 4)).argmin(1)
    assert sorted(which.tolist()) == list(range(40))
    assert labels.tolist() == made.labels[which].tolist()


@pytest.mark.parametrize("statistics", [True, False])
def test_batch_norm_follows_the_images_or_stays(ask: Any, statistics: bool) -> None:
    def moved(stage: Stage) -> bool:
        model = stage.model()
        before = model.buffers.clone()
        stage.training(model, statistics=statistics)
        assert stage.logits(model, stage.noise(8)).requires_grad
        return not torch.equal(model.buffers, before)

    assert ask(moved) == [statistics, statistics]


def test_the_server_as_the_round_began(digit_simulation: Any) -> None:
    seen = []

    class Watches(FedAvg):
        def after_round(self, server: Server, updates: list[Update], stage: Stage) -> Server:
            seen.append((stage.before, server))
            return server

    simulation = digit_simulation(algorithm=Watches())
    start = simulation.state.server
    list(simulation)
    (first, after), (second, _) = seen
    assert first.parameters.equal(start.parameters) and first.buffers.equal(start.buffers)
    assert second.parameters.equal(after.parameters) and not after.parameters.equal(first.parameters)
