from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from vhl.training.mosaic import MosaicStream, assemble
from vhl.training.stream import Stream

from vhl.algorithms.base import Work
from vhl.data.images import ImageSet, ImageStream
from vhl.rounds.metrics import describe_training
from vhl.rounds.simulation import Simulation

PLAIN = (np.zeros(1), np.full(1, 1 / 255))
"""Statistics that leave pixels as they are."""


def images(count: int, labels: list[int], size: int = 8) -> ImageSet:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (count, size, size, 1), dtype=np.uint8)
    return ImageSet(pixels, np.resize(np.array(labels, np.int64), count))


def test_a_mosaic_has_its_images_row_by_row() -> None:
    small = torch.arange(8 * 2 * 3).view(8, 2, 3, 1)
    mosaics = assemble(small, 2)
    assert mosaics.shape == (2, 4, 6, 1)
    for number in range(8):
        mosaic, row, column = number // 4, number // 2 % 2, number % 2
        tile = mosaics[mosaic, 2 * row : 2 * row + 2, 3 * column : 3 * column + 3]
        assert torch.equal(tile, small[number])


@pytest.mark.parametrize("crop", [None, 4])
def test_crop_flip_and_cutout_act_on_each_tile(crop: int | None) -> None:
    """As on the small images alone; a crop and a square of so many pixels are a mosaic's."""
    small, device = images(6, [0, 1], size=16), torch.device("cpu")
    settings = ImageStream(name="any", flip=True, crop=crop, cutout=6)
    mosaics = MosaicStream(small, settings, PLAIN, device, tiles=2, of_one_class=False)
    alone = Stream(small, ImageStream(name="any", flip=True, crop=2, cutout=3), PLAIN, device)
    assert mosaics.padding == 2 and mosaics.shape == (16, 16, 1)
    index = torch.tensor([3, 0, 5, 5, 1, 2, 4, 0])
    drawn, others = (stream.draw(np.random.default_rng(1), (8,)) for stream in (mosaics, alone))
    assert all(np.array_equal(drawn[key], others[key]) for key in drawn.keys() | others.keys())
    chance = {k: torch.from_numpy(v) for k, v in drawn.items()}
    found, expected = mosaics.batch(index, chance), alone.batch(index, chance)
    assert found.shape == (2, 1, 32, 32) and len(chance["row"].unique()) > 1
    for number in range(8):
        mosaic, row, column = number // 4, number // 2 % 2, number % 2
        tile = found[mosaic, :, 16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
        assert torch.equal(tile, expected[number])


@pytest.mark.parametrize("of_one_class", [False, True])
def test_order(of_one_class: bool) -> None:
    """Shuffled passes; or mosaics of one class each, no image twice before each class ran out."""
    whole = images(60, [0, 1, 2], size=8)
    stream = MosaicStream(
        whole, ImageStream(name="any"), PLAIN, torch.device("cpu"), tiles=2, of_one_class=of_one_class
    )
    order = stream.order(np.random.default_rng(2), 128)
    assert len(order) == 128 and len(set(order[:60])) == 60
    same = [len(set(whole.labels[group])) == 1 for group in order.reshape(-1, 4)]
    assert all(same) if of_one_class else not all(same)
    labels = whole.labels[order.reshape(-1, 4)[:, 0]]
    assert np.bincount(labels[:15]).min() >= 1 and len(set(labels[:5])) > 1
    group = order.reshape(-1, 4)[0]
    assert not np.array_equal(group, np.sort(group)) or len(set(np.diff(group))) > 1  # members are shuffled


def test_a_class_too_small_for_a_mosaic_is_named(complains: Any) -> None:
    few = ImageSet(images(7, [0]).images, np.array([0, 0, 0, 0, 1, 1, 1]))
    options = ImageStream(name="any"), PLAIN, torch.device("cpu")
    with complains("a virtual class has 3 images, fewer than the 4 of a mosaic"):
        MosaicStream(few, *options, tiles=2, of_one_class=True)
    assert (
        len(MosaicStream(few, *options, tiles=2, of_one_class=False).order(np.random.default_rng(0), 9)) == 9
    )


# --- in training ---------------------------------------------------------------------------------------


def parameters(simulation: Simulation) -> torch.Tensor:
    list(simulation)
    server = simulation.state.server
    return torch.cat([server.parameters, server.buffers])


@pytest.mark.parametrize("virtual_batch", [16, 8])
def test_the_share_that_the_count_gives_changes_nothing(digit_simulation: Any, virtual_batch: int) -> None:
    """8 natural images in every batch, none of them a filler, and so many virtual ones."""
    settings = {
        "engine": {"precision": "fp64"},
        "partition": {"name": "iid", "clients": 2},
        "training": {"batch_size": 8},
    }
    objective = {"name": "vhl", "virtual_batch": virtual_batch}
    share = virtual_batch / (8 + virtual_batch)
    plain = digit_simulation(**settings, objective=objective)
    parts = [len(part) for part in plain.problem.parts]
    assert all(part % 8 == 0 for part in parts), parts
    weighted = digit_simulation(**settings, objective={**objective, "batch_norm_share": share})
    other = digit_simulation(**settings, objective={**objective, "batch_norm_share": 0.9})
    expected = parameters(plain)
    torch.testing.assert_close(parameters(weighted), expected, rtol=1e-8, atol=1e-10)
    assert not torch.allclose(parameters(other), expected, rtol=1e-3, atol=1e-3)


def test_a_mosaic_takes_a_quarter_of_the_places(digit_simulation: Any) -> None:
    light = digit_simulation(objective={"name": "vhl-light", "virtual_batch": 8})
    full = digit_simulation(objective={"name": "vhl", "virtual_batch": 8})
    assert light.problem.compute == pytest.approx(1.25 / 2 * full.problem.compute)
    (record, *_), (twice, *_) = list(light), list(full)
    natural = sum(len(light.problem.parts[client]) for client in record.clients)
    assert record.samples - natural == (twice.samples - natural) // 4
    assert record.virtual_accuracy is not None and 0 <= record.virtual_accuracy <= 1


def test_virtual_accuracy_is_of_all_tiles(digit_simulation: Any) -> None:
    """3 steps of 8 virtual images: 12 hits are a half."""
    problem = digit_simulation(objective={"name": "vhl-light", "virtual_batch": 8}).problem
    job, done = SimpleNamespace(rate=0.1, samples=range(20)), SimpleNamespace(work=Work(20, 3, 0.1, 0.9))
    known = describe_training(problem, [job], [done], {"natural_hits": 5.0, "virtual_hits": 12.0})  # type: ignore[list-item]
    assert known["virtual_accuracy"] == 0.5 and known["train_accuracy"] == 0.25


def test_lanes_and_resuming_do_not_change_it(digit_simulation: Any) -> None:
    whole = parameters(digit_simulation(objective="vhl-light"))
    again = parameters(digit_simulation(objective="vhl-light", engine={"lanes": 3}))
    assert torch.equal(whole, again)
    begun = digit_simulation(objective="vhl-light")
    begun.run_round()
    continued = digit_simulation(objective="vhl-light", state=begun.state)
    assert torch.equal(parameters(continued), whole)


def test_tiles_are_made_at_their_own_size(digit_simulation: Any) -> None:
    """As the generator makes them for images so small, not down-sampled; and looked at like that."""
    problem = digit_simulation(objective="vhl-light").problem
    generator, seed = problem.experiment.virtual, problem.experiment.seeds.data
    made = generator.generate(problem.classes, generator.count_per_class(problem.classes), (4, 4, 1), seed)
    assert np.array_equal(problem.virtual.images.images, made.images)
    assert problem.virtual.plain.shape == problem.virtual.train.shape == (4, 4, 1)


def test_fillers_do_not_count_in_shared_statistics(digit_simulation: Any) -> None:
    """A client with 80 images and batches of 128: 48 rows are fillers, and weigh nothing."""
    simulation = digit_simulation(
        rounds=1,
        partition={"name": "centralized"},
        objective={"name": "naive", "virtual_batch": 16, "batch_norm_share": 0.25},
        training={"batch_size": 128, "lr": 1e-12},
        engine={"precision": "fp64"},
    )
    problem, task = simulation.problem, simulation.task
    plan = {name: torch.from_numpy(rows[0]) for name, rows in task.plan(0, 0, problem.parts[0]).items()}
    assert (plan["weights"] == 0).sum() == 48

    def batch(kind: str, stream: Stream, index: torch.Tensor) -> torch.Tensor:
        chance = {key.split(".")[1]: rows for key, rows in plan.items() if key.startswith(f"{kind}.")}
        return stream.batch(index, chance)

    natural = batch("natural", problem.natural.train, plan["index"])[plan["weights"] != 0]
    virtual = batch("virtual", problem.virtual.train, plan["virtual"])
    first = next(m for m in simulation.model.module.modules() if isinstance(m, torch.nn.Conv2d))
    means = [first(images).mean((0, 2, 3)) for images in (natural, virtual)]
    mean = 0.75 * means[0] + 0.25 * means[1]
    simulation.run_round()
    server = simulation.state.server
    buffers = simulation.model.layout.unpack(server.parameters, server.buffers)
    name = next(key for key in buffers if key.endswith("running_mean"))
    torch.testing.assert_close(buffers[name], 0.1 * mean.detach(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("option", [{"mosaic_classes": "same"}, {"mosaic": 1}, {"batch_norm_share": 0.75}])
def test_every_option_has_an_effect(digit_simulation: Any, option: dict[str, Any]) -> None:
    usual = parameters(digit_simulation(objective="vhl-light"))
    assert not torch.equal(parameters(digit_simulation(objective={"name": "vhl-light", **option})), usual)


def test_frozen_statistics_stay_and_gradients_flow(digit_simulation: Any) -> None:
    """FixBN: from the third round on clients neither make statistics of their batches nor move them."""
    settings = {"rounds": 4, "training": {"batch_size": 8, "freeze_batch_norm": 2}}
    simulation = digit_simulation(**settings, objective={"name": "vhl-light", "virtual_batch": 8})
    states = []
    while simulation.state.round < 4:
        simulation.run_round()
        states.append(simulation.state.server)
    buffers = [server.buffers for server in states]
    assert not torch.equal(buffers[0], buffers[1])
    torch.testing.assert_close(buffers[2], buffers[1], rtol=1e-6, atol=1e-7)  # an average of equals
    torch.testing.assert_close(buffers[3], buffers[1], rtol=1e-6, atol=1e-7)
    assert not torch.equal(states[3].parameters, states[2].parameters)
    never = digit_simulation(rounds=4, objective={"name": "vhl-light", "virtual_batch": 8})
    list(never)
    assert not torch.equal(never.state.server.parameters, states[3].parameters)


def test_a_frozen_step_is_gradient_descent_through_fixed_statistics(digit_simulation: Any) -> None:
    """One client, one full batch, no momentum: against PyTorch's own layers in evaluation mode."""
    simulation = digit_simulation(
        rounds=1,
        partition={"name": "centralized"},
        training={
            "batch_size": 80,
            "momentum": 0.0,
            "weight_decay": 0.0,
            "lr": 0.1,
            "freeze_batch_norm": 0,
            "keep_momentum": False,
        },
        engine={"precision": "fp64"},
    )
    problem, model = simulation.problem, simulation.model
    model.module.eval()
    start = simulation.state.server
    plan = simulation.task.plan(0, 0, problem.parts[0])
    index = torch.from_numpy(plan["index"][0])
    chance = {k.split(".")[1]: torch.from_numpy(v[0]) for k, v in plan.items() if k.startswith("natural.")}
    model.load(start.parameters, start.buffers)
    _, logits = model.module(problem.natural.train.batch(index, chance))
    loss = torch.nn.functional.cross_entropy(logits, problem.natural.train.labels[index])
    model.differentiate(loss)
    expected = start.parameters - 0.1 * model.gradient
    simulation.run_round()
    torch.testing.assert_close(simulation.state.server.parameters, expected, rtol=1e-9, atol=1e-11)


# --- a step as formulas --------------------------------------------------------------------------------


def pixels(images: np.ndarray, statistics: tuple[Any, Any]) -> Tensor:
    mean, std = statistics
    return torch.from_numpy(((images / 255 - mean) / std).transpose(0, 3, 1, 2).copy())


def tiled(small: Tensor) -> Tensor:
    """Four in a row are a mosaic: two above, two below."""
    rows = [torch.cat([torch.cat([a, b], 2), torch.cat([c, d], 2)], 1) for a, b, c, d in small.split(4)]
    return torch.stack(rows)


def convolutional(
    images: Tensor, state: dict[str, Tensor], shares: Tensor, moved: dict[str, Tensor]
) -> Tensor:
    """The last map of ``cnn``; ``moved`` gets running statistics."""
    x, pixels_that_count = images, shares.count_nonzero()
    for stage in range(3):
        x, first = (F.max_pool2d(x, 2), 1) if stage else (x, 0)
        x = F.conv2d(x, state[f"stages.{stage}.{first}.weight"], padding=1)
        area, norm = x[0, 0].numel(), f"stages.{stage}.{first + 1}"
        mean = (shares[:, None] * x.mean((2, 3))).sum(0)[:, None, None]
        variance = (shares[:, None] * ((x - mean) ** 2).mean((2, 3))).sum(0)
        count = pixels_that_count * area
        moved[f"{norm}.running_mean"] = 0.1 * mean.flatten()
        moved[f"{norm}.running_var"] = 0.9 + 0.1 * variance * count / (count - 1)
        x = (x - mean) / (variance + 1e-5).sqrt()[:, None, None]
        x = (x * state[f"{norm}.weight"][:, None, None] + state[f"{norm}.bias"][:, None, None]).relu()
    return x


def contrastive(features: Tensor, labels: Tensor) -> Tensor:
    """SupCon, anchor by anchor."""
    unit, terms = F.normalize(features), []
    for i in range(len(unit)):
        others = [j for j in range(len(unit)) if j != i]
        log = (unit[others] @ unit[i] / 0.07).log_softmax(0)
        terms.append(-log[labels[others] == labels[i]].mean())
    return torch.stack(terms).mean()


def test_a_step_is_gradient_descent_on_the_formulas(digit_simulation: Any, small_digits: Any) -> None:
    """80 natural images, 48 fillers and 16 virtual ones in 4 mosaics: weights and running statistics."""
    simulation = digit_simulation(
        rounds=1,
        partition={"name": "centralized"},
        data=small_digits(size=16, crop=0),
        virtual={"name": "noise", "per_class": 10, "crop": 0, "flip": False, "mean": (0.4,), "std": (0.2,)},
        objective={
            "name": "vhl-light",
            "virtual_batch": 16,
            "batch_norm_share": 0.3,
            "virtual_weight": 0.5,
            "calibration": 0.8,
            "virtual_calibration": 0.1,
        },
        training={"batch_size": 128, "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0},
        engine={"precision": "fp64"},
    )
    problem, layout, start = simulation.problem, simulation.model.layout, simulation.state.server
    plan = {name: rows[0] for name, rows in simulation.task.plan(0, 0, problem.parts[0]).items()}
    assert plan.keys() == {"index", "weights", "virtual"} and (plan["weights"] == 0).sum() == 48
    chosen, virtual = plan["index"][plan["weights"] != 0], problem.virtual.images.take(plan["virtual"])
    natural = problem.dataset.train.take(chosen)
    small = pixels(virtual.images, (0.4, 0.2))
    images = torch.cat([pixels(natural.images, problem.natural.statistics), tiled(small)])
    labels, virtual_labels = (torch.from_numpy(own.labels) for own in (natural, virtual))
    shares = torch.tensor([0.7 / 80] * 80 + [0.3 / 4] * 4, dtype=torch.float64)
    state = {
        name: own.clone().requires_grad_()
        for name, own in layout.unpack(start.parameters, start.buffers).items()
    }
    moved: dict[str, Tensor] = {}
    last = convolutional(images, state, shares, moved)
    quarters = [last[80:, :, y : y + 2, x : x + 2].mean((2, 3)) for y in (0, 2) for x in (0, 2)]
    features = last[:80].mean((2, 3)), torch.stack(quarters, 1).flatten(0, 1)
    logits = [own @ state["head.weight"].T + state["head.bias"] for own in features]
    loss = F.cross_entropy(logits[0], labels) + 0.5 * F.cross_entropy(logits[1], virtual_labels + 4)
    together = torch.cat([features[0], features[1].detach()]), torch.cat([labels, virtual_labels])
    loss = loss + 0.8 * contrastive(*together) + 0.1 * contrastive(features[1], virtual_labels)
    loss.backward()
    record = simulation.run_round()
    assert sum(record.loss.values()) == pytest.approx(loss.item(), rel=1e-9)
    server = simulation.state.server
    for name, found in layout.unpack(server.parameters, server.buffers).items():
        expected = moved[name] if name in moved else state[name] - 0.1 * state[name].grad
        torch.testing.assert_close(found, expected.detach(), rtol=1e-10, atol=1e-12)
