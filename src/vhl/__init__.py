"""Virtual Homogeneity Learning for federated learning on non-IID data.

>>> import vhl
>>> experiment = vhl.Experiment(data="digits", objective="vhl", rounds=1, clients_per_round=1)
>>> for record in vhl.simulate(experiment):
...     print(record.round)
1
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from vhl.errors import VHLError
    from vhl.experiment import Experiment
    from vhl.objectives.distances.supcon import supcon
    from vhl.rounds.simulation import Simulation, simulate
    from vhl.runs.classifier import load_model
    from vhl.runs.record import Record
    from vhl.virtual.tensors import virtual_images

_HOMES = {
    "Experiment": "vhl.experiment",
    "Record": "vhl.runs.record",
    "Simulation": "vhl.rounds.simulation",
    "VHLError": "vhl.errors",
    "load_model": "vhl.runs.classifier",
    "simulate": "vhl.rounds.simulation",
    "supcon": "vhl.objectives.distances.supcon",
    "virtual_images": "vhl.virtual.tensors",
}

__all__ = [
    "Experiment",
    "Record",
    "Simulation",
    "VHLError",
    "load_model",
    "simulate",
    "supcon",
    "virtual_images",
]


def __getattr__(name: str) -> Any:
    """Import on first use: ``import vhl`` and ``vhl --help`` do not wait for PyTorch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'vhl' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
