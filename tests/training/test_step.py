"""Steps against PyTorch's own operations and formulas, in double precision."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vhl.algorithms.base import Server
from vhl.algorithms.fedavg import FedAvg
from vhl.chance import normals
from vhl.data.images import ImageSet, ImageStream
from vhl.models.cnn import CNN
from vhl.models.layers.norm import BatchNorm
from vhl.models.vectors import FlatModel
from vhl.objectives.naive import Naive
from vhl.objectives.plain import Plain
from vhl.objectives.vfa import VFA
from vhl.objectives.vhl import VHL
from vhl.objectives.vhl_light import VHLLight
from vhl.objectives.virtual_batch import VirtualBatch
from vhl.rounds.simulation import Simulation, State
from vhl.training.mosaics import MosaicStream
from vhl.training.precision import Precision
from vhl.training.step import Step, statistics_weights
from vhl.training.streams import Stream
from vhl.training.task import MOMENTUM, Job
from vhl.training.trainer import Trainer

CPU, EXACT = torch.device("cpu"), {"rtol": 1e-12, "atol": 1e-12}


def a_stream(count, size=8, tiles=1):
    """So many images of 8×8 pixels and two channels; their labels are 0, 1, 2, 0 and so on."""
    images = np.random.default_rng(count).integers(0, 256, (count, size // tiles, size // tiles, 2), np.uint8)
    held, options = ImageSet(images, np.arange(count) % 3), ImageStream(crop=2, flip=True, cutout=4)
    statistics = np.array([0.4, 0.6]), np.array([0.2, 0.3])
    if tiles == 1:
        return Stream(held, options, statistics, CPU, dtype=torch.float64)
    return MosaicStream(held, options, statistics, CPU, tiles=tiles, of_one_class=False, dtype=torch.float64)


def build(size=8, outputs=6):
    """Networks whose running statistics, scales and shifts are not what they are by default."""
    torch.manual_seed(2)
    network = CNN(width=4).build(outputs, 2, (size, size))
    for layer in network.modules():
        if isinstance(layer, BatchNorm):
            for tensor in layer.state_dict().values():
                tensor.uniform_(0.5, 1.5)
    return network


@pytest.fixture
def make(make_task):
    """A task of clients of any size in batches of 4, two epochs; its objective may use virtual images."""

    def task(objective, size=8, **settings):
        virtual = objective.virtual_images(4)
        training = {"batch_size": 4, "epochs": 2, "momentum": 0.5, "weight_decay": 0.1, "keep_momentum": True}
        features = {"last": 16}
        defaults = {"precision": Precision(CPU, "fp64"), "seed": 5, "sizes": (10, 1)}
        return make_task(
            partial(build, size),
            a_stream(20, size),
            virtual=None if virtual is None else a_stream(9, size, virtual.tiles),
            objective=objective,
            training=training,
            features=features,
            shared={name: torch.from_numpy(a) for name, a in objective.shared(3, features, 0).items()},
            **{**defaults, **settings},
        )

    return task


def batch(task, schedule, step, rows=None, kind="natural"):
    """Images of a step, and their labels."""
    stream = task.natural if kind == "natural" else task.virtual
    own = {name: values[step][:rows] for name, values in schedule.items() if name.startswith(f"{kind}.")}
    index = schedule["index" if kind == "natural" else "virtual"][step][:rows]
    images = Stream.batch(stream, index, {name.split(".")[1]: values for name, values in own.items()})
    if stream.tiles > 1:  # four in a row are a mosaic: two above, two below
        pairs = [torch.cat([one, other], 2) for one, other in zip(images[::2], images[1::2], strict=True)]
        images = torch.stack([torch.cat([a, b], 1) for a, b in zip(pairs[::2], pairs[1::2], strict=True)])
    return images, stream.labels[index]


# --- an ordinary loop ----------------------------------------------------------------------------------


class Loop:
    """One client's training with PyTorch's own layers and optimiser, on the rows that are there."""

    def __init__(self, task, job, frozen=False):
        self.task, self.job, self.frozen, self.loss = task, job, frozen, 0.0
        model = FlatModel(task.build(), CPU, torch.float64)
        self.layout, self.tensors = model.layout, model.layout.unpack(model.parameters, model.buffers)
        parameters = [self.tensors[segment.name].requires_grad_() for segment in model.layout.parameters]
        training = task.training
        decay = {"momentum": training.momentum, "weight_decay": training.weight_decay}
        self.optimizer = torch.optim.SGD(parameters, job.rate, **decay)
        (self.schedule,) = task.schedules([job])

    def run(self):
        """Parameters and buffers after all steps."""
        for step, rows in enumerate(self.task.rows(len(self.job.samples))):
            loss = self.loss_of(step, rows)
            self.loss += loss.item()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        tensors = {name: tensor.detach() for name, tensor in self.tensors.items()}
        return self.layout.pack(tensors)

    def loss_of(self, step, rows):
        objective, state = self.task.objective, self.tensors
        images, labels = batch(self.task, self.schedule, step, rows)
        virtual, shares = self.task.virtual_batch, None
        if virtual is not None:
            others, virtual_labels = batch(self.task, self.schedule, step, kind="virtual")
            images = torch.cat([images, others])
            if virtual.share is not None:
                own, theirs = (1 - virtual.share) / rows, virtual.share / len(others)
                shares = torch.tensor([own] * rows + [theirs] * len(others), dtype=torch.float64)
        last = self.maps(images, shares)
        features = [last[:rows].mean((2, 3))]
        if virtual is not None and virtual.tiles > 1:
            half = last.shape[2] // 2
            corners = [(slice(y, y + half), slice(x, x + half)) for y in (0, half) for x in (0, half)]
            tiles = [last[rows:, :, y, x].mean((2, 3)) for y, x in corners]
            features.append(torch.stack(tiles, 1).flatten(0, 1))
        else:
            features.append(last[rows:].mean((2, 3)))
        logits = [own @ state["head.weight"].T + state["head.bias"] for own in features]
        loss = F.cross_entropy(logits[0], labels)
        if isinstance(objective, Naive):
            loss = loss + objective.virtual_weight * F.cross_entropy(logits[1], virtual_labels + 3)
        if isinstance(objective, VHL):
            both = torch.cat([features[0], features[1].detach()]), torch.cat([labels, virtual_labels])
            loss = loss + objective.calibration * contrast(*both)
            loss = loss + objective.virtual_calibration * contrast(features[1], virtual_labels)
        if isinstance(objective, VFA):  # ⌊4/3⌋ + 1 of a class, for a short batch too
            means = self.task.shared["means"].double()
            noise = normals(5, self.job.round, self.job.client, step, (3, 2, 16), means)
            drawn = (means[:, None] + 0.05 * noise).flatten(0, 1)
            both = torch.cat([features[0], drawn]), torch.cat([labels, torch.tensor([0, 0, 1, 1, 2, 2])])
            loss = loss + contrast(*both)
        return loss

    def maps(self, x, shares):
        """The last map of ``cnn``; images may count differently in the statistics."""
        for stage in range(3):
            x, first = (F.max_pool2d(x, 2, ceil_mode=True), 1) if stage else (x, 0)
            x = F.conv2d(x, self.tensors[f"stages.{stage}.{first}.weight"], padding=1)
            names = (
                f"stages.{stage}.{first + 1}.{n}" for n in ("running_mean", "running_var", "weight", "bias")
            )
            mean, variance, weight, bias = (self.tensors[name] for name in names)
            if shares is None or self.frozen:
                x = F.batch_norm(x, mean, variance, weight, bias, training=not self.frozen)
            else:
                x = weighted(x, shares, mean, variance, weight, bias)
            x = x.relu()
        return x


def weighted(x, shares, running_mean, running_var, weight, bias):
    """μ = Σ w_n μ_n and σ² = Σ w_n (σ_n² + (μ_n − μ)²); gradients by autograd."""
    column = (slice(None), None, None)
    mean = (shares[:, None] * x.mean((2, 3))).sum(0)
    variance = (shares[:, None] * ((x - mean[column]) ** 2).mean((2, 3))).sum(0)
    count = x[:, 0].numel()
    with torch.no_grad():
        running_mean.mul_(0.9).add_(0.1 * mean)
        running_var.mul_(0.9).add_(0.1 * variance * count / (count - 1))
    return (x - mean[column]) / (variance[column] + 1e-5).sqrt() * weight[column] + bias[column]


def contrast(features, labels):
    """SupCon, anchor by anchor; one without a partner counts 0."""
    unit, terms = F.normalize(features), []
    for i in range(len(unit)):
        others = [j for j in range(len(unit)) if j != i]
        log = (unit[others] @ unit[i] / 0.07).log_softmax(0)
        partners = labels[others] == labels[i]
        terms.append(-(log * partners).sum() / max(1, int(partners.sum())))
    return torch.stack(terms).mean()


OBJECTIVES = {
    "plain": Plain(),
    "naive": Naive(virtual_batch=5, virtual_weight=0.5),
    "vhl": VHL(virtual_batch=5, calibration=0.8, virtual_calibration=0.1),
    "vhl with a share": VHL(virtual_batch=5, batch_norm_share=0.3),
    "mosaics": VHLLight(virtual_batch=8, batch_norm_share=None),
    "vhl-light": VHLLight(virtual_batch=8),
    "vfa": VFA(),
}


def outcomes(task, job, frozen=False):
    """Of a client whose short batches are cut, and of one whose fillers weigh nothing."""
    found = []
    for weigh in (False, True):
        trainer = Trainer(Step(task), frozen=frozen)
        server = Server(trainer.model.parameters.clone(), trainer.model.buffers.clone())
        (schedule,) = task.schedules([job])
        trainer.begin(job, task, server, schedule)
        for _ in range(task.steps(len(job.samples))):
            trainer.step(weigh=True) if weigh else trainer.next()
        found.append(trainer.finish(job, task))
    return found


@pytest.mark.parametrize("count", [10, 9, 3, 1])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_client_trains_as_with_pytorch_on_the_rows_that_are_there(make, name, count):
    """Batches of 4: a client's last has 2, 1, 3 or 1 samples, both if they are cut and if fillers weigh 0."""
    task, job = make(OBJECTIVES[name]), Job(7, 3, torch.arange(20 - count, 20), 0.1, {})
    loop = Loop(task, job)
    parameters, buffers = loop.run()
    cut, weighed = outcomes(task, job)
    for found in (cut, weighed):
        torch.testing.assert_close(found.update.parameters, parameters, **EXACT)
        torch.testing.assert_close(found.update.buffers, buffers, **EXACT)
        terms = [total.item() for term, total in found.totals.items() if not term.endswith("hits")]
        assert sum(terms) == pytest.approx(loop.loss, rel=1e-12)
    assert set(cut.totals) == set(weighed.totals)
    for term, total in cut.totals.items():
        torch.testing.assert_close(weighed.totals[term], total, **EXACT)
    torch.testing.assert_close(weighed.state[MOMENTUM], cut.state[MOMENTUM], **EXACT)
    assert not parameters.allclose(FlatModel(task.build(), CPU, torch.float64).parameters, rtol=1e-2)


@pytest.mark.parametrize("name", ["plain", "vhl-light"])
def test_with_frozen_statistics_too(make, name):
    """FixBN: statistics are the server's, and gradients flow through them as through constants."""
    task, job = make(OBJECTIVES[name]), Job(7, 3, torch.arange(9), 0.1, {})
    parameters, buffers = Loop(task, job, frozen=True).run()
    for found in outcomes(task, job, frozen=True):
        torch.testing.assert_close(found.update.parameters, parameters, **EXACT)
        assert found.update.buffers.equal(buffers)


def test_one_image_of_one_pixel_at_the_last_batch_norm(make):
    """4×4 pixels are pooled to one value a channel, which PyTorch's own layer would refuse."""
    task, job = make(Plain(), size=4), Job(7, 3, torch.arange(5, 6), 0.1, {})
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        Loop(task, job).run()
    cut, weighed = outcomes(task, job)
    torch.testing.assert_close(weighed.update.parameters, cut.update.parameters, **EXACT)
    torch.testing.assert_close(weighed.update.buffers, cut.update.buffers, **EXACT)
    model = FlatModel(build(4), CPU, torch.float64)
    before = model.layout.unpack(model.parameters, model.buffers)
    after = model.layout.unpack(cut.update.parameters, cut.update.buffers)
    last = "stages.2.2.running_var"
    torch.testing.assert_close(after[last], 0.81 * before[last], **EXACT)  # two epochs of one step
    assert cut.update.parameters.isfinite().all() and cut.update.buffers.isfinite().all()
    step = "stages.2.2.bias"  # which is all that is left of that layer: it trains, and its scale decays
    assert not after[step].allclose(before[step] * 0.9, atol=1e-3)


class _Foreign(nn.Module):
    """A network with a layer of PyTorch's own that counts all images alike."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.body, self.head = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(128)), nn.Linear(128, 3)

    def forward(self, images):
        features = self.body(images)
        return {"last": features}, self.head(features)


@pytest.mark.parametrize("count", [6, 9])
def test_a_network_that_cannot_weigh_images_uses_those_that_are_there(make, count):
    """But the ninth sample alone has no deviation: the first again is beside it, and not in the loss."""
    task, job = replace(make(Plain()), build=_Foreign), Job(7, 3, torch.arange(count), 0.1, {})
    module, trainer = _Foreign().double().train(), Trainer(Step(task))
    optimizer = torch.optim.SGD(module.parameters(), 0.1, 0.5, weight_decay=0.1)
    server = Server(trainer.model.parameters.clone(), trainer.model.buffers.clone())
    (schedule,) = task.schedules([job])
    trainer.begin(job, task, server, schedule)
    for step, rows in enumerate(task.rows(count)):
        images, labels = batch(task, schedule, step, max(rows, 2))
        optimizer.zero_grad()
        F.cross_entropy(module(images)[1][:rows], labels[:rows]).backward()
        optimizer.step()
        trainer.next()
    expected = trainer.model.layout.pack(module.state_dict())
    torch.testing.assert_close(trainer.model.parameters, expected[0].detach(), **EXACT)
    torch.testing.assert_close(trainer.model.buffers, expected[1].detach(), **EXACT)


# --- how much images count -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("virtual", "expected"),
    [
        (None, [1 / 2, 1 / 2, 0]),
        (VirtualBatch(3), [1 / 5, 1 / 5, 0, 1 / 5, 1 / 5, 1 / 5]),
        (VirtualBatch(4, share=0.5), [1 / 4, 1 / 4, 0, 1 / 8, 1 / 8, 1 / 8, 1 / 8]),
        (VirtualBatch(8, tiles=2, share=0.2), [2 / 5, 2 / 5, 0, 1 / 10, 1 / 10]),
        (VirtualBatch(8, tiles=2), [1 / 4, 1 / 4, 0, 1 / 4, 1 / 4]),
    ],
)
def test_how_much_images_count_in_statistics(virtual, expected):
    """Two natural images and a filler; mosaics count as one image each."""
    found = statistics_weights(torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64), virtual)
    assert found.tolist() == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("virtual_batch", [16, 8])
def test_the_share_that_the_count_gives_changes_nothing(digit_simulation, virtual_batch):
    """8 natural images in every batch, none of them a filler, and so many virtual ones."""
    settings = {"engine": {"precision": "fp64"}, "partition": {"name": "iid", "clients": 2}}
    objective = {"name": "vhl", "virtual_batch": virtual_batch}

    def trained(**more):
        simulation = digit_simulation(**settings, objective={**objective, **more})
        assert simulation.setup.sizes == (40, 40)
        list(simulation)
        return torch.cat([simulation.state.server.parameters, simulation.state.server.buffers])

    expected = trained()
    by_count = trained(batch_norm_share=virtual_batch / (8 + virtual_batch))
    torch.testing.assert_close(by_count, expected, rtol=1e-8, atol=1e-10)
    assert not trained(batch_norm_share=0.9).allclose(expected, rtol=1e-3, atol=1e-3)


# --- what is added up ----------------------------------------------------------------------------------


class _Echo(nn.Module):
    """An image's pixels are its logits."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, images):
        return {"last": images.flatten(1)}, images.flatten(1) * self.scale


@pytest.mark.parametrize(("shared_labels", "virtual_hits"), [(False, 2), (True, 1)])
def test_hits_count_over_all_outputs(make_task, make_stream, shared_labels, virtual_hits):
    natural = [[9, 1, 2, 0], [1, 0, 5, 0], [3, 4, 0, 0]]  # labels 0, 0, 1: the second falls to output 2
    virtual = [[0, 0, 9, 1], [0, 0, 1, 9], [0, 9, 1, 2]]  # labels 0, 1, 1 are outputs 2, 3, 3 unless shared
    task = make_task(
        _Echo,
        make_stream(np.array(natural, np.uint8)[:, None, :, None], [0, 0, 1]),
        virtual=make_stream(np.array(virtual, np.uint8)[:, None, :, None], [0, 1, 1]),
        objective=Naive(virtual_batch=3, shared_labels=shared_labels),
        classes=2,
        training={"batch_size": 5, "epochs": 2},
    )
    for found in outcomes(task, Job(0, 0, torch.arange(3), 0.1, {})):
        assert found.totals["natural_hits"] == 4  # the two fillers a batch are not counted
        assert found.totals["virtual_hits"] == 2 * virtual_hits


class _Returns(Plain):
    """An objective of one's own, and what its loss returns."""

    def loss(self, batch):
        return self._returned(super().loss(batch)["natural"])


@pytest.mark.parametrize(
    "returned", [lambda loss: loss, lambda loss: {"own": loss[None]}, lambda loss: {"own": 1.0}, lambda _: {}]
)
def test_an_objective_that_does_not_return_its_terms_is_told_so(make, complains, returned):
    objective = type("Returns", (_Returns,), {"_returned": staticmethod(returned)})()
    with complains("loss must return its terms by name", "tensors of one number each"):
        outcomes(make(objective), Job(0, 0, torch.arange(4), 0.1, {}))


def test_an_objective_gets_logits_in_full_precision(make):
    """And features as the network made them."""
    seen = []

    class Noting(Plain):
        def loss(self, batch):
            seen.append((batch.logits.dtype, batch.features["stage1"].dtype))
            return super().loss(batch)

    outcomes(make(Noting(), precision=Precision(CPU, "bf16")), Job(0, 0, torch.arange(4), 0.1, {}))
    assert set(seen) == {(torch.float32, torch.bfloat16)}


def test_a_loss_without_a_gradient_is_told_so(make, complains):
    constant = type("Constant", (Plain,), {"loss": lambda self, batch: {"own": torch.zeros(())}})()
    with complains("no term of it has a gradient"):
        outcomes(make(constant), Job(0, 0, torch.arange(4), 0.1, {}))


# --- by hand -------------------------------------------------------------------------------------------
# One client whose two samples are the point a, in batches of one: two steps on ½‖w − a‖², η = ½ and m = ¼.

A = [[(8, 0, 4)] * 2]
TRAINING = {"momentum": 0.25, "weight_decay": 0.25, "batch_size": 1}


def test_weight_decay_with_a_proximal_term(point_simulation, weights_of):
    """w₁ = a/2. Then g = −a/2 + μ a/2 + λ a/2 = −a/8 and v = −a/4 − a/8: w₂ = a/2 + 3a/16."""
    simulation = point_simulation(A, algorithm={"name": "fedprox", "mu": 0.5}, training=TRAINING)
    simulation.run_round()
    assert weights_of(simulation).tolist() == [8 * 11 / 16, 0, 4 * 11 / 16]


def test_weight_decay_with_control_variates(point_simulation, weights_of):
    """With c = 1 and cᵢ = 3 each step adds η(cᵢ − c) = 1, outside momentum and without decay.

    From 0 towards 8: 4, and 5 with the correction; g = −3 + 5/4, v = −2 − 7/4, so 6.875 and 7.875.
    Towards 0: 0, 1; g = 1 + 1/4 = v, so 0.375 and 1.375. Towards 4: 2, 3; g = −1 + 3/4, v = −1 − 1/4, so
    3.625 and 4.625. At last cᵢ⁺ − cᵢ = (0 − w)/(2η) − c.
    """
    fresh = point_simulation(A, algorithm="scaffold", training=TRAINING)
    zeros = torch.zeros_like(fresh.state.server.parameters)
    server = replace(fresh.state.server, state={"control": zeros + 1})
    state = State(0, server, {0: {"control": zeros + 3}})
    simulation = Simulation(fresh.experiment, federation=fresh.federation, state=state)
    simulation.run_round()
    weights = np.array([7.875, 1.375, 4.625])
    assert weights_of(simulation).tolist() == weights.tolist()
    assert simulation.state.clients[0]["control"][:3].tolist() == (3 - weights - 1).tolist()
    assert simulation.state.server.state["control"][:3].tolist() == (1 - weights - 1).tolist()


def test_an_algorithm_sees_the_gradient_before_the_weight_decay(point_simulation, weights_of):
    """Doubled: 2 · −a, so w₁ = a; there the gradient is 0 and the decay alone is left, λ a = a/4."""

    class Doubling(FedAvg):
        def correct_gradient(self, gradient, weights, client):
            gradient.mul_(2)

    training = {**TRAINING, "momentum": 0.0}
    simulation = point_simulation(A, algorithm=Doubling(), training=training)
    simulation.run_round()
    assert weights_of(simulation).tolist() == [7, 0, 3.5]


def test_corrections_come_after_the_step_and_know_its_rate(point_simulation):
    """One step a round: half of the way, then a quarter of what is left."""
    seen = []

    class Watching(FedAvg):
        def correct_weights(self, weights, rate, client):
            seen.append((float(rate), rate.shape, client.start[:3].tolist(), weights[:3].tolist()))

    list(point_simulation(A, algorithm=Watching(), training={"lr_decay": 0.5}, rounds=2))
    assert seen == [(0.5, (), [0, 0, 0], [4, 0, 2]), (0.25, (), [4, 0, 2], [5, 0, 2.5])]


# One client with the points a = (8, 0, 4): with η = 0.5 each step halves the distance e = w − a.
@pytest.mark.parametrize(
    ("training", "share"),
    [
        ({}, 1 - 1 / 4),
        ({"lr": 0.25}, 1 - 0.75**2),
        ({"epochs": 3}, 1 - 1 / 64),
        ({"batch_size": 1}, 1 - 1 / 16),  # the two samples are two steps
        ({"lr_decay": 0.5}, 1 - 1 / 2 * 3 / 4),
        ({"lr_drops": [1]}, 1 - 1 / 2 * 0.95),
        ({"weight_decay": 0.25}, 1 / 2 + 3 / 16),  # second gradient: −a/2 + ¼ · a/2
        ({"momentum": 0.25}, 1 - 1 / 4),  # reset: one step a round never uses it
        ({"momentum": 0.25, "keep_momentum": True}, 1 / 2 + 3 / 8),  # ¼ · a + a/2, halved
        ({"momentum": 0.25, "epochs": 2}, 1 - 1 / 64),  # e/2, then ½e − ½(¼e + ½e)
    ],
)
def test_what_each_training_option_does(point_simulation, weights_of, training, share):
    simulation = point_simulation(A, training=training)
    for _ in range(2):
        simulation.run_round()
    np.testing.assert_allclose(weights_of(simulation), share * np.array([8, 0, 4]), rtol=1e-6)


@pytest.mark.parametrize(
    ("keep", "share", "momentum"),
    [(True, 1 + 7 / 128, [[0, -12, -3], [0, -0.75, -0.1875]]), (False, 63 / 64, None)],
)
def test_momentum_is_kept_or_reset_between_participations(
    point_simulation, weights_of, keep, share, momentum
):
    """Two steps a round, m = ¼: after round 1 the distance is e/8 and the momentum ¾e.

    Kept, round 2 goes on with 3/16 e + 1/8 e = 5/16 e, to −1/32 e; 5/64 e − 1/32 e = 3/64 e, to −7/128 e.
    """
    training = {"momentum": 0.25, "keep_momentum": keep}
    simulation = point_simulation([[(0, 16, 4)] * 3], training=training)
    for round_ in range(2):
        simulation.run_round()
        if momentum is None:
            assert simulation.state.clients == {}
        else:
            assert simulation.state.clients[0][MOMENTUM][:3].tolist() == momentum[round_]
    assert weights_of(simulation).tolist() == [0, 16 * share, 4 * share]


def test_frozen_statistics_stay_and_gradients_flow(digit_simulation):
    """FixBN: from the third round on clients neither make statistics of their batches nor move them."""
    settings = {"rounds": 4, "objective": {"name": "vhl-light", "virtual_batch": 8}}
    simulation = digit_simulation(**settings, training={"batch_size": 8, "freeze_batch_norm": 2})
    states = []
    while simulation.state.round < 4:
        simulation.run_round()
        states.append(simulation.state.server)
    buffers = [server.buffers for server in states]
    assert not torch.equal(buffers[0], buffers[1])
    torch.testing.assert_close(buffers[2], buffers[1], rtol=1e-6, atol=1e-7)  # an average of equals
    torch.testing.assert_close(buffers[3], buffers[1], rtol=1e-6, atol=1e-7)
    assert not torch.equal(states[3].parameters, states[2].parameters)
    never = digit_simulation(**settings)
    list(never)
    assert not torch.equal(never.state.server.parameters, states[3].parameters)
