"""What the server does."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits_app.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    start = ArrayRecord(Net().state_dict())
    FedAvg().start(grid, start, num_rounds=context.run_config["num-server-rounds"])
