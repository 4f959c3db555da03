"""A server and its clients, ready for the first round."""

from __future__ import annotations

from dataclasses import dataclass

from vhl.rounds.clients import Clients
from vhl.rounds.setup import Setup
from vhl.training.lanes import Lanes


@dataclass(frozen=True)
class Federation:
    """What the round loop works with."""

    setup: Setup
    clients: Clients
    lanes: Lanes
    """What the server itself trains on."""
