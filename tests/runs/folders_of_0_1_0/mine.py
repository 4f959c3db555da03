"""A method of one's own, as a user would write it."""

from pydantic import Field

from vhl.algorithms.fedavg import FedAvg


class Mine(FedAvg):
    """FedAvg that goes only part of the way to the average."""

    share: float = Field(0.5, gt=0, le=1, description="of the way")

    def aggregate(self, server, updates, clients):
        parameters, state = super().aggregate(server, updates, clients)
        return server.parameters.lerp(parameters, self.share), state
