"""Whole runs in each precision that a CPU has."""

from __future__ import annotations

import json
from itertools import islice

import pytest
import torch
from safetensors.torch import load_file

from vhl.config.listing import available
from vhl.experiment import Experiment
from vhl.models.vectors import FlatModel
from vhl.objectives.plain import Plain
from vhl.session.session import Session

PRECISIONS = ["fp64", "fp32", "bf16"]
OBJECTIVES = list(available("objectives"))


@pytest.fixture
def run(digit_simulation):
    """A simulation in this precision, run to its end."""

    def finish(precision, lanes=1, **settings):
        defaults = {"algorithm": "scaffold", "training": {"batch_size": 8, "keep_momentum": True}}
        engine = {"precision": precision, "lanes": lanes}
        simulation = digit_simulation(**{**defaults, "rounds": 1, **settings}, engine=engine)
        simulation.start = FlatModel(
            simulation.setup.blueprint.build(), torch.device("cpu")
        )  # no pretraining
        simulation.records = list(simulation)
        return simulation

    return finish


def kept(simulation):
    """Every vector of the state."""
    state, server = simulation.state, simulation.state.server
    own = [vector for vectors in state.clients.values() for vector in vectors.values()]
    return [server.parameters, server.buffers, *server.state.values(), *own]


def distance(one, other, part="parameters"):
    """Of two servers, relative to the way that the other went."""
    a, b = getattr(one.state.server, part).double(), getattr(other.state.server, part).double()
    return float((a - b).norm() / (b - getattr(other.start, part).double()).norm())


# --- what is computed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_shorter_types_come_near_the_longer_one(run, objective):
    exact, single, half = found = [run(precision, objective=objective) for precision in PRECISIONS]
    for part in ("parameters", "buffers"):
        assert 1e-9 < distance(single, exact, part) < 1e-4
        assert 1e-4 < distance(half, exact, part) < 0.2
    losses = [simulation.records[-1].loss for simulation in found]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert losses[2] == pytest.approx(losses[0], rel=0.1)
    for simulation, dtype in zip(found, (torch.float64, torch.float32, torch.float32), strict=True):
        vectors = kept(simulation)
        assert len(vectors) == 2 + 1 + 4 * 2  # control variates, and momentum of four clients
        assert all(vector.dtype == dtype for vector in vectors)
        setup = simulation.setup
        streams = [simulation.clients.task.natural, setup.test]
        streams += [] if setup.virtual is None else [setup.virtual.train, setup.virtual.plain]
        assert all(stream.scale.dtype == stream.shift.dtype == dtype for stream in streams)


def test_in_bf16_the_servers_weights_have_all_their_digits(run):
    server = run("bf16").state.server
    rounded = server.parameters.bfloat16().float()
    assert float((rounded == server.parameters).float().mean()) < 0.5  # 0 lies between the tensors
    assert torch.allclose(rounded, server.parameters, rtol=2**-8, atol=1e-30)


@pytest.mark.parametrize(
    ("precision", "features", "logits"),
    [
        ("fp64", torch.float64, torch.float64),
        ("fp32", torch.float32, torch.float32),
        ("bf16", torch.bfloat16, torch.float32),
    ],
)
def test_what_an_objective_sees(run, precision, features, logits):
    seen = set()

    class Watching(Plain):
        def loss(self, batch):
            seen.add((batch.features["stage1"].dtype, batch.logits.dtype))
            return super().loss(batch)

    run(precision, objective=Watching())
    assert seen == {(features, logits)}


@pytest.mark.parametrize(
    "model", ["resnet8", {"name": "cnn", "norm": "group"}, {"name": "resnet8", "norm": "group"}]
)
def test_other_networks_in_bf16(run, model):
    table = {"width": 4, **(model if isinstance(model, dict) else {"name": model})}
    exact, half = run("fp32", model=table), run("bf16", model=table)
    assert 1e-4 < distance(half, exact) < 0.3


OWN = """
import torch
from torch import nn

class Own(nn.Module):
    def __init__(self, inputs, classes):
        super().__init__()
        self.first, self.second = nn.Linear(inputs, 16), nn.Linear(16, classes)
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, images):
        features = self.first(images.flatten(1)).tanh() * self.scale
        return {"last": features}, self.second(features)

def build(classes, channels, size):
    return Own(channels * size[0] * size[1], classes)
"""


def test_an_own_network_needs_no_change_for_any_precision(run, tmp_path):
    (tmp_path / "own_precise.py").write_text(OWN, encoding="utf-8")
    exact, single, half = (run(p, model=f"{tmp_path / 'own_precise.py'}:build") for p in PRECISIONS)
    assert 1e-9 < distance(single, exact) < 1e-4
    assert 1e-4 < distance(half, exact) < 0.2


@pytest.mark.parametrize(("precision", "width"), [("fp64", 8), ("fp32", 4), ("bf16", 4)])
def test_traffic_is_what_is_sent(run, precision, width):
    simulation = run(precision)
    layout = simulation.model.layout
    both_ways = 2 * 4 * (2 * layout.parameter_count + layout.buffer_count)  # of four clients, with variates
    assert simulation.records[0].bytes == width * both_ways


@pytest.mark.parametrize("precision", PRECISIONS)
def test_evaluation_and_snapshot(run, precision):
    """Features are looked at with the network as it computes, and written in full."""
    simulation = run(precision, objective="vhl", features_at=(1,), training={"batch_size": 8, "lr": 0.1})
    shot, record = simulation.snapshot, simulation.records[0]
    hits = shot["server.test.logits"].argmax(1) == shot["server.test.labels"]
    assert float(hits.double().mean()) == pytest.approx(record.accuracy)
    dtype = simulation.state.server.parameters.dtype
    assert shot["server.test.features"].dtype == shot["server.virtual.logits"].dtype == dtype
    assert shot["head.head.weight"].equal(simulation.named_tensors()["head.weight"])
    short = shot["server.test.features"].bfloat16().to(dtype).equal(shot["server.test.features"])
    assert short == (precision == "bf16")


# --- run folders ---------------------------------------------------------------------------------------

SMALL = {
    "name": "small",
    "data": {"name": "digits", "size": 8},
    "partition": {"name": "iid", "clients": 20},
    "virtual": {"name": "noise", "per_class": 3},
    "model": {"name": "cnn", "width": 4},
    "objective": {"name": "vhl", "virtual_batch": 8},
    "algorithm": "scaffold",
    "training": {"batch_size": 16, "keep_momentum": True},
    "rounds": 3,
    "clients_per_round": 2,
    "device": "cpu",
}


@pytest.fixture
def session(tmp_path):
    """A run of the small experiment in the folder ``where``."""

    def make(where, *, resume=False, **engine):
        experiment = Experiment(**{**SMALL, "engine": engine})
        return Session(experiment, tmp_path / where, resume=resume, data_dir=tmp_path)

    return make


def left(folder):
    """Records without their wall time, and all tensors, bit for bit."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    files = sorted((folder / "state").glob("*.safetensors"))
    tensors = {(f.name, name): tensor for f in files for name, tensor in load_file(f).items()}
    return [{**json.loads(line), "seconds": 0} for line in lines], tensors


def assert_same(one, other):
    (records, tensors), (other_records, others) = left(one), left(other)
    assert records == other_records and len(records) == 3 and set(tensors) == set(others)
    for key, tensor in tensors.items():
        assert tensor.dtype == others[key].dtype and tensor.equal(others[key]), key


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_checkpoint_goes_on_to_the_same_end(session, precision):
    whole = session("whole", precision=precision)
    list(whole)
    first = iter(session("cut", precision=precision))
    list(islice(first, 1))
    first.close()
    second = session("cut", resume=True, precision=precision, lanes=2)  # of which nothing depends
    assert [record.round for record in second] == [2, 3]
    assert_same(second.folder.path, whole.folder.path)
    dtypes = {tensor.dtype for tensor in left(whole.folder.path)[1].values()}
    assert dtypes == {torch.float64 if precision == "fp64" else torch.float32}


@pytest.mark.parametrize(
    ("begun", "wanted", "sentence"),
    [
        ({}, {"precision": "fp64"}, "engine.precision = unset, not fp64"),
        ({"precision": "bf16"}, {"precision": "fp32"}, "engine.precision = bf16, not fp32"),
        ({"precision": "bf16"}, {}, "engine.precision = bf16, not unset"),
    ],
)
def test_a_run_is_not_continued_in_another_precision(session, complains, begun, wanted, sentence):
    first = session("run", **begun)
    list(islice(first, 1))
    before = left(first.folder.path)[0]
    with complains(first.folder.path, sentence, "name=NAME"):
        list(session("run", resume=True, **wanted))
    assert left(first.folder.path)[0] == before


@pytest.mark.parametrize(
    "engine",
    [
        {"lanes": 3},
        {"deterministic": True},
        {"state_memory": 0},
        {"capture": False, "kernels": False, "compile": False},
    ],
)
def test_how_it_is_computed_may_change(session, engine):
    whole, cut = session("whole"), session("cut")
    list(whole)
    list(islice(cut, 1))
    rest = session("cut", resume=True, **engine)
    assert [record.round for record in rest] == [2, 3]
    assert_same(rest.folder.path, whole.folder.path)
    written = rest.folder.experiment().engine
    assert written == rest.experiment.engine  # the folder says how it is computed now
