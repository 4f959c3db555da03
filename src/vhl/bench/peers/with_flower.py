"""FedAvg in Flower (Beutel et al., 2020): its simulation runtime, which trains clients in Ray's processes.

As many clients at a time as take part and cores allow, each with its share of the GPU; data and network stay
on the device between a process's clients, as Flower advises. Flower and Ray are imported where they are
used, for they need not be installed.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from vhl.bench.work import Data, Round, Work
from vhl.errors import VHLError


def run(work: Work, rounds: int) -> Iterator[Round]:
    """All rounds are run before the first is returned: Flower cannot be stopped in between."""
    for service in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"):
        os.environ.setdefault(service, "0")  # read on import: a benchmark reports to nobody
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation
    from ray import cloudpickle

    logging.getLogger("flwr").setLevel(logging.ERROR)
    server_app, client_app, server = ServerApp(), ClientApp(), _Server(work, rounds)
    server_app.main()(server.main)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "work.pickle"  # Ray sends an app along with every message: the data must not be
        file.write_bytes(cloudpickle.dumps(work))
        client_app.train()(partial(_train, file))
        run_simulation(server_app, client_app, len(work.parts), backend_config=_resources(work))
    yield from server.measured


def _resources(work: Work) -> dict[str, dict[str, Any]]:
    cores = os.cpu_count() or 1
    at_once = max(1, min(work.clients_per_round, cores // 2))
    gpus = 1 / at_once if work.device.type == "cuda" else 0.0
    return {
        "init_args": {"num_cpus": cores, "log_to_driver": False},
        "client_resources": {"num_cpus": cores // at_once, "num_gpus": gpus},
    }


class _Server:
    """Flower's FedAvg and a stopwatch, which its evaluation of the server's model pushes."""

    def __init__(self, work: Work, rounds: int) -> None:
        self.work, self.rounds = work, rounds
        self.data, self.network = Data(work), work.network()
        self.measured: list[Round] = []
        self.sizes: list[int] = []
        self.started = 0.0

    def main(self, grid: Any, context: Any) -> None:
        from flwr.app import ArrayRecord
        from flwr.serverapp.strategy import FedAvg

        count, clients = self.work.clients_per_round, len(self.work.parts)
        strategy = FedAvg(
            fraction_train=count / clients,
            min_train_nodes=count,
            min_available_nodes=clients,
            fraction_evaluate=0.0,
            train_metrics_aggr_fn=self.note_sizes,
        )
        start = ArrayRecord(self.network.state_dict())
        strategy.start(grid, start, num_rounds=self.rounds, evaluate_fn=self.evaluate)

    def note_sizes(self, replies: Sequence[Any], key: str) -> Any:
        """Flower draws clients of its own; their replies say how large they are."""
        from flwr.app import MetricRecord

        self.sizes = [reply["metrics"][key] for reply in replies]
        return MetricRecord()

    def evaluate(self, round_: int, arrays: Any) -> None:
        """Called before the first round, as round 0, and at the end of every one."""
        if round_ and len(self.sizes) < self.work.clients_per_round:
            raise VHLError(f"Flower lost clients in round {round_}; its log above says why.")
        trained = self.work.now()
        self.network.load_state_dict(arrays.to_torch_state_dict())
        with self.work.switches():
            accuracy = self.data.accuracy(self.network)
        ended = self.work.now()
        if round_:
            images = self.work.epochs * sum(self.sizes)
            self.measured.append(Round(images, ended - self.started, ended - trained, accuracy))
        self.started, self.sizes = ended, []


def _train(file: Path, message: Any, context: Any) -> Any:
    """A client's part, in one of Ray's processes."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    data, network = _workplace(file)
    client = context.node_config["partition-id"]
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    with data.work.switches():
        data.train(network, client)
    metrics = MetricRecord({"num-examples": len(data.parts[client])})
    reply = RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics})
    return Message(reply, reply_to=message)


@cache
def _workplace(file: Path) -> tuple[Data, nn.Module]:
    """What a process keeps from client to client."""
    work: Work = pickle.loads(file.read_bytes())
    return Data(work), work.network()
