"""What only a GPU can show: captured and compiled steps compute what eager ones do."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vhl.algorithms.fedavg import FedAvg
from vhl.config.listing import available
from vhl.data.images import ImageSet
from vhl.data.sources.base import Source
from vhl.experiment import Experiment
from vhl.models.base import Model
from vhl.objectives.plain import Plain
from vhl.rounds.local import Shared
from vhl.rounds.simulation import Simulation
from vhl.training.static import REHEARSALS, Place

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

ALGORITHMS, OBJECTIVES = list(available("algorithms")), list(available("objectives"))
EAGER = {"capture": False, "kernels": False, "compile": False, "lanes": 1}
CAPTURED = {"capture": True, "kernels": False, "compile": False}
FUSED = {"capture": True, "kernels": True, "compile": False}
COMPILED = {"capture": True, "kernels": True, "compile": True}
WHOLE = {"partition": "iid:4", "training": {"batch_size": 5, "epochs": 2}}
"""Clients of 20 images, or of 15 where others are for validation: whole batches alone, which are the same to
the bit recorded or not.

A short one is weighed where it is recorded and cut where it is not, which differs in rounding, and in what a
network draws in it.
"""

Make = Callable[..., Simulation]


@pytest.fixture
def make(digit_simulation: Make, small_digits: Callable[..., Source]) -> Make:
    """Four clients with digits, on the GPU; every fallback is an error unless ``notes`` takes it."""

    def build(notes: list[str] | None = None, **settings: Any) -> Simulation:
        defaults = {"device": "cuda", "rounds": 3, "training": {"batch_size": 8, "epochs": 2}}
        if settings.get("algorithm") == "feddf":
            settings["algorithm"] = {"name": "feddf", "steps": 6, "check_every": 3, "batch_size": 5}
            settings["data"] = small_digits(validation=0.25)
        if settings.get("objective") == "vhl-light":
            settings["objective"] = {"name": "vhl-light", "virtual_batch": 8}
        return digit_simulation(
            on_note=_refuse if notes is None else notes.append, **{**defaults, **settings}
        )

    return build


def _refuse(note: str) -> None:
    raise AssertionError(note)


def finish(simulation: Simulation) -> tuple[Tensor, Tensor]:
    for _ in simulation:
        pass
    return simulation.state.server.parameters.cpu(), simulation.state.server.buffers.cpu()


def assert_close(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], tolerance: float) -> None:
    for a, b in zip(one, other, strict=True):
        assert float((a - b).norm()) <= tolerance * float(b.norm())


def same(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def assert_equal_to_eager(make: Make, way: dict[str, bool], **settings: Any) -> None:
    eager = finish(make(**settings, engine={**EAGER, "precision": "fp64"}))
    assert_close(finish(make(**settings, engine={**way, "precision": "fp64"})), eager, 1e-10)


@pytest.mark.parametrize("way", [CAPTURED, FUSED], ids=["captured", "fused"])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_in_float64_it_is_what_eager_training_computes(
    make: Make, algorithm: str, objective: str, way: dict[str, bool]
) -> None:
    assert_equal_to_eager(make, way, algorithm=algorithm, objective=objective)


@pytest.mark.parametrize(
    ("algorithm", "objective"),
    [(a, o) for a in ALGORITHMS for o in OBJECTIVES if o == "vhl" or a in ("fedavg", "moon")],
)
def test_compiled_in_float64_it_is_what_eager_training_computes(
    make: Make, algorithm: str, objective: str
) -> None:
    """The compiler gets the objective and the algorithm's own terms: of most algorithms there are none."""
    assert_equal_to_eager(make, COMPILED, algorithm=algorithm, objective=objective)


@pytest.mark.parametrize("way", [CAPTURED, FUSED, COMPILED], ids=["captured", "fused", "compiled"])
@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("objective", ["plain", "vhl", "vhl-light"])
@pytest.mark.parametrize("clients", [5, 16], ids=["some are short", "all are short"])
def test_a_short_batch_that_is_weighed_is_one_that_is_cut(
    make: Make, clients: int, objective: Any, norm: str, way: dict[str, bool]
) -> None:
    """Of 16 images an epoch's last batch of six has four; of 5 images the only one has five."""
    settings = {"partition": f"iid:{clients}", "model": {"name": "cnn", "width": 4, "norm": norm}}
    training = {"batch_size": 6, "epochs": 2}
    assert_equal_to_eager(make, way, objective=objective, training=training, **settings)


@pytest.mark.parametrize("way", [FUSED, COMPILED], ids=["fused", "compiled"])
@pytest.mark.parametrize("distance", list(available("distances")))
def test_every_distance_in_float64(make: Make, distance: str, way: dict[str, bool]) -> None:
    assert_equal_to_eager(make, way, objective={"name": "vhl", "virtual_batch": 6, "distance": distance})


@pytest.mark.parametrize("way", [CAPTURED, FUSED], ids=["captured", "fused"])
@pytest.mark.parametrize(
    "objective", ["plain", "vhl-light", {"name": "naive", "mosaic": 2, "mosaic_classes": "same"}], ids=str
)
def test_frozen_statistics_in_float64(make: Make, objective: Any, way: dict[str, bool]) -> None:
    training = {"batch_size": 8, "epochs": 2, "freeze_batch_norm": 1}
    assert_equal_to_eager(make, way, objective=objective, training=training)


@pytest.mark.parametrize("images", [None, {"name": "noise", "per_class": 10}], ids=["fresh", "set"])
def test_distillation_in_float64(make: Make, small_digits: Callable[..., Source], images: Any) -> None:
    options = {"steps": 40, "check_every": 10, "batch_size": 8, "images": images}
    settings = {"algorithm": {"name": "feddf", **options}, "data": small_digits(validation=0.25)}
    assert_equal_to_eager(make, FUSED, **settings)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_deterministic_capture_is_eager_training_to_the_bit(
    make: Make, algorithm: str, objective: str, precision: str
) -> None:
    settings = {**WHOLE, "algorithm": algorithm, "objective": objective}
    engine = {"precision": precision, "deterministic": True}
    eager = finish(make(**settings, engine={**EAGER, **engine}))
    for lanes in (1, 3):
        assert same(finish(make(**settings, engine={**CAPTURED, **engine, "lanes": lanes})), eager)


@pytest.mark.parametrize(("precision", "share"), [("fp32", 0.01), ("tf32", 0.5), ("bf16", 0.5)])
def test_a_residual_network_in_lower_precision_stays_near(make: Make, precision: str, share: float) -> None:
    """Of the way that the weights go in 64 bits."""
    settings = {"model": {"name": "resnet8", "width": 8}, "objective": "vhl", "rounds": 1}
    exact = finish(make(**settings, engine={**EAGER, "precision": "fp64"}))
    found = finish(make(**settings, engine={**COMPILED, "precision": precision}))
    assert found[0].dtype == torch.float32
    start = make(**settings, engine={**EAGER, "precision": "fp64"}).state.server.parameters.cpu()
    moved = float((exact[0] - start).norm())
    assert 0 < float((found[0].double() - exact[0]).norm()) < share * moved


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_float64_residual_network_compiled(make: Make, norm: str) -> None:
    """Batch norm runs as kernels of ours, group norm through the compiler, where nothing is set."""
    settings = {"model": {"name": "resnet8", "width": 4, "norm": norm}, "objective": "vhl"}
    eager = finish(make(**settings, engine={**EAGER, "precision": "fp64"}))
    assert_close(finish(make(**settings, engine={"precision": "fp64"})), eager, 1e-10)


class _Dropping(nn.Module):
    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 32), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(32, classes)

    def forward(self, images: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        last = self.body(images)
        return {"last": last}, self.head(last)


class _DroppingModel(Model):
    """A network with chance inside."""

    def build(self, classes: int, channels: int, size: tuple[int, int]) -> nn.Module:
        return _Dropping(channels * size[0] * size[1], classes)


@pytest.mark.parametrize("way", [CAPTURED, COMPILED], ids=["captured", "compiled"])
def test_dropout_is_the_same_captured_or_not(make: Make, way: dict[str, bool]) -> None:
    settings = {**WHOLE, "model": _DroppingModel()}
    engine = {"precision": "fp64", "deterministic": True}
    eager = finish(make(**settings, engine={**EAGER, **engine}))
    for lanes in (1, 3):
        assert_close(finish(make(**settings, engine={**way, **engine, "lanes": lanes})), eager, 1e-12)
    other = finish(make(**settings, seeds={"batches": 1}, engine={**EAGER, **engine}))
    assert not same(other, eager)


class _AsksTheHost(Plain):
    """An objective that cannot be captured: it looks at a number on the way."""

    def loss(self, batch: Any) -> dict[str, Tensor]:
        terms = super().loss(batch)
        return terms if terms["natural"].item() > 0 else {"natural": terms["natural"] * 2}


class _AsksTheHostToo(FedAvg):
    """An algorithm that cannot be captured; updates are not compiled."""

    def correct_gradient(self, gradient: Tensor, weights: Tensor, client: Any) -> None:
        if float(gradient.norm()) > 1e9:
            gradient.zero_()


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"objective": _AsksTheHost()}, {"uncompiled", "uncaptured"}),
        ({"algorithm": _AsksTheHostToo()}, {"uncaptured"}),
    ],
)
def test_what_cannot_be_captured_runs_eagerly_and_says_so(
    make: Make, part: dict[str, Any], said: set[str]
) -> None:
    notes: list[str] = []
    engine = {"precision": "fp64", "deterministic": True, "lanes": 2}
    found = finish(make(notes, **part, engine={**engine, "compile": True}))
    assert len(notes) == len(said) and {note.split()[2].rstrip(",") for note in notes} == said
    assert all("\n" not in note for note in notes)
    plain = {"objective": "plain"} if "objective" in part else {"algorithm": "fedavg"}
    assert_close(found, finish(make(**plain, engine={**EAGER, **engine})), 1e-12)


class _Garbage:
    """What only the collector throws away, and a graph with it."""

    def __init__(self, graph: Callable[[], None]) -> None:
        self.graph, self.itself = graph, self


def test_a_graph_that_goes_away_does_not_spoil_the_one_being_recorded() -> None:
    place, number = Place(torch.device("cuda")), torch.zeros(1, device="cuda")

    def add() -> None:
        number.add_(1)

    old = [place.record(add) for _ in range(REHEARSALS + 1)]

    def step() -> None:
        add()
        _Garbage(old.pop())
        assert len([[] for _ in range(1000)]) == 1000  # far more than the collector waits for

    thresholds = gc.get_threshold()
    gc.set_threshold(10)
    try:
        new = place.record(step)
    finally:
        gc.set_threshold(*thresholds)
    number.zero_()
    new()
    torch.cuda.synchronize()
    assert float(number) == 1


def test_a_run_cut_in_two_is_the_same_run(make: Make) -> None:
    settings = {"algorithm": "scaffold", "objective": "vhl", "training": {"keep_momentum": True}}
    engine = {"deterministic": True, "precision": "fp32"}
    whole = make(**settings, rounds=4, engine=engine)
    first = make(**settings, rounds=2, engine=engine)
    finish(first)
    second = make(**settings, rounds=4, engine=engine, state=first.state)
    assert same(finish(second), finish(whole))


def test_runs_side_by_side_are_the_same_runs(make: Make) -> None:
    engine = {"deterministic": True, "precision": "bf16"}
    variants = [{"objective": "plain"}, {"objective": "vhl"}, {"objective": "vhl", "seeds": {"batches": 1}}]
    alone = [finish(make(**variant, engine=engine)) for variant in variants]
    shared = Shared()
    running = [make(**variant, engine=engine, shared=shared) for variant in variants]
    assert len({id(simulation.federation.lanes) for simulation in running}) == 1
    records = [0, 0, 0]
    while records != [3, 3, 3]:
        for number, simulation in enumerate(running):
            if records[number] < 3 and simulation.poll() is not None:
                records[number] += 1
    for simulation, expected in zip(running, alone, strict=True):
        server = simulation.state.server
        assert same((server.parameters.cpu(), server.buffers.cpu()), expected)


def test_state_on_the_host_is_the_same_state(make: Make) -> None:
    settings = {"algorithm": "scaffold", "training": {"keep_momentum": True}, "rounds": 4}
    engine = {"deterministic": True, "precision": "fp32"}
    there = make(**settings, engine=engine)
    here = make(**settings, engine={**engine, "state_memory": 0})
    assert same(finish(here), finish(there))
    assert all(v.is_cuda for vectors in there.state.clients.values() for v in vectors.values())
    vectors = [v for vectors in here.state.clients.values() for v in vectors.values()]
    assert len(vectors) == 8 and all(not v.is_cuda and v.is_pinned() for v in vectors)


@pytest.fixture
def many_images(array_source: Callable[..., Source]) -> Source:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (10_000, 8, 8, 1), np.uint8)
    return array_source(ImageSet(images, np.arange(10_000) % 10), 10)


def test_ten_thousand_clients_take_the_memory_of_ten(many_images: Source, tmp_path: Any) -> None:
    """Two of them a round, 8 samples a batch; the schedule of a longer client is all that may differ."""

    def peak(clients: int, **settings: Any) -> int:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        simulation = Simulation(
            Experiment(
                data=many_images,
                partition={"name": "iid", "clients": clients},
                model={"name": "resnet8", "width": 32},
                objective="plain",
                training={"batch_size": 8},
                clients_per_round=2,
                rounds=30,
                evaluate_every=30,
                device="cuda",
                **settings,
            ),
            tmp_path,
        )
        finish(simulation)
        return torch.cuda.max_memory_allocated()

    assert peak(10_000) <= 1.02 * peak(10)
    vector = 4 * 310_000  # bytes of the network's parameters, at least
    bounded, free = (peak(10_000, algorithm="scaffold", engine={"state_memory": gb}) for gb in (0.0, 8.0))
    assert free - bounded > 30 * vector  # 30 rounds with two clients have left some sixty vectors
