from __future__ import annotations

import copy
import importlib.util
import os

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from vhl.bench import peers
from vhl.bench.peers import with_pfl
from vhl.bench.work import Data


def as_input(work, images):
    pixels = (images / 255 - work.mean) / work.std
    return torch.from_numpy(pixels.transpose(0, 3, 1, 2).astype(np.float32)).contiguous()


def batches(work, data, client):
    """One epoch; without augmentation one batch of all, which no peer's order can change."""
    if work.padding:
        return data.epoch(client)
    part = work.parts[client]
    return [(as_input(work, work.images[part]), torch.from_numpy(work.labels[part]))]


def trained(work, data, network, client):
    """The client's model after its local training by PyTorch's SGD."""
    own = copy.deepcopy(network).train()
    optimizer = torch.optim.SGD(
        own.parameters(), lr=work.lr, momentum=work.momentum, weight_decay=work.weight_decay, foreach=False
    )
    for _ in range(work.epochs):
        for images, labels in batches(work, data, client):
            optimizer.zero_grad()
            cross_entropy(own(images.contiguous())[1], labels).backward()
            optimizer.step()
    return own.state_dict()


def fedavg(work, rounds):
    """An independent FedAvg: the server's tensors in the end, images and accuracy of each round."""
    server, data, results = work.build(), Data(work), []
    for number in range(rounds):
        clients = work.clients(number)
        sizes = np.array([len(work.parts[client]) for client in clients])
        states = [trained(work, data, server, client) for client in clients]
        shares = (sizes / sizes.sum()).tolist()
        mean = {n: sum(p * state[n] for p, state in zip(shares, states, strict=True)) for n in states[0]}
        server.load_state_dict(mean)
        predicted = server.eval()(as_input(work, work.test_images))[1].argmax(1).numpy()
        results.append((work.epochs * sizes.sum(), (predicted == work.test_labels).mean()))
    return server.state_dict(), results


def need(peer):
    for package in peers.PEERS[peer].packages:
        pytest.importorskip(package)


SMALL_BATCHES = {"clients_per_round": 2, "batch_size": 4, "padding": 1, "flip": True, "lr": 0.02}


@pytest.mark.parametrize(
    ("peer", "settings"),
    [
        ("plain", {"clients_per_round": 1}),
        ("plain", SMALL_BATCHES),
        ("pfl", SMALL_BATCHES),
        ("flower", {}),  # it draws clients and orders of its own: all clients, full batches
    ],
)
def test_a_peer_computes_fedavg(make_work, peer, settings):
    """Parameters, batch-norm statistics, accuracies and image counts of three rounds of two epochs."""
    need(peer)
    first, built = make_work().build(), []

    def build():
        built.append(copy.deepcopy(first).eval())  # that it trains is the peer's business
        return built[-1]

    settings = {**settings, "epochs": 2, "seed": 2}
    wanted, results = fedavg(make_work(**settings), 3)
    rounds = list(peers.run(peer, make_work(build=build, **settings), 3))
    assert [(one.images, one.accuracy) for one in rounds] == results
    assert all(0 < one.evaluation < one.seconds for one in rounds)
    (server,) = built  # the others are copies, or in other processes
    found = server.state_dict()
    assert any(name.endswith("running_var") for name in wanted)
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("peer", ["plain", "pfl"])
def test_peers_can_take_turns(make_work, peer):
    """Rounds come one by one, and what a peer sets for a round is set back."""
    need(peer)
    before = torch.backends.cudnn.benchmark
    for _ in peers.run(peer, make_work(**SMALL_BATCHES), 2):
        assert torch.backends.cudnn.benchmark == before


@pytest.mark.parametrize("before", [None, "meta"])
def test_pfl_leaves_the_environment_as_it_was(make_work, monkeypatch, before):
    need("pfl")
    monkeypatch.delenv("PFL_PYTORCH_DEVICE", raising=False)
    if before is not None:
        monkeypatch.setenv("PFL_PYTORCH_DEVICE", before)
    rounds = peers.run("pfl", make_work(), 2)
    next(rounds)
    assert os.environ["PFL_PYTORCH_DEVICE"] == "cpu"
    rounds.close()
    assert os.environ.get("PFL_PYTORCH_DEVICE") == before


def test_pfl_evaluates_the_server_alone(make_work, monkeypatch):
    """Of itself it evaluates every client before and after its first training."""
    need("pfl")
    evaluated, metrics = [], with_pfl._Network.metrics

    def counting(self, images, labels):
        evaluated.append(len(images))
        return metrics(self, images, labels)

    monkeypatch.setattr(with_pfl._Network, "metrics", counting)
    list(peers.run("pfl", make_work(), 2))
    assert evaluated == [20, 20]


@pytest.mark.parametrize(
    ("peer", "package", "install"),
    [("pfl", "pfl", "pfl[pytorch]==0.6.0"), ("flower", "ray", "flwr[simulation]==1.42.0")],
)
def test_a_missing_package_is_named_at_once(make_work, monkeypatch, complains, peer, package, install):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else object())
    with complains(peer, f"package {package};", f"pip install '{install}'"):
        peers.run(peer, make_work(), 1)


def test_an_unknown_peer(make_work, complains):
    with complains("'nobody'", "plain, pfl, flower"):
        peers.run("nobody", make_work(), 1)
