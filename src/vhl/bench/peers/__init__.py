"""Others that do the same work, to compare our engine with."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass

from vhl.bench.work import Round, Work
from vhl.errors import VHLError


@dataclass(frozen=True)
class Peer:
    """Where a peer is, and what it needs."""

    module: str
    packages: tuple[str, ...]
    """What must be importable."""
    install: str
    """What pip must install for that."""
    summary: str


PEERS = {
    "plain": Peer("vhl.bench.peers.plain", (), "", "a PyTorch loop written by hand for this one task"),
    "pfl": Peer(
        "vhl.bench.peers.with_pfl", ("pfl",), "pfl[pytorch]==0.6.0", "Apple's pfl-research, simulated backend"
    ),
    "flower": Peer(
        "vhl.bench.peers.with_flower",
        ("flwr", "ray"),
        "flwr[simulation]==1.42.0",
        "Flower's simulation runtime, on Ray",
    ),
}


def check(name: str) -> Peer:
    """The peer of this name, if there is one and it is installed."""
    if name not in PEERS:
        raise VHLError(f"There is no peer {name!r}; choose from {', '.join(PEERS)}.")
    peer = PEERS[name]
    missing = [package for package in peer.packages if importlib.util.find_spec(package) is None]
    if missing:
        raise VHLError(
            f"The peer {name} needs the package {' and '.join(missing)}; "
            f"install it with pip install '{peer.install}'."
        )
    return peer


def run(name: str, work: Work, rounds: int) -> Iterator[Round]:
    """A peer's rounds, from a fresh start; the first holds its warm-up."""
    rounds_of_peer: Iterator[Round] = importlib.import_module(check(name).module).run(work, rounds)
    return rounds_of_peer
