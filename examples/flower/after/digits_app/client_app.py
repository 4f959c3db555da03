"""What a site does."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_app.task import Net, load_data, test, train

app = ClientApp()
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def start(message: Message, context: Context):
    """The server's model and this site's data."""
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model, *load_data(context.node_config["partition-id"], context.node_config["num-partitions"])


@app.train()
def train_here(message: Message, context: Context) -> Message:
    model, loader, _ = start(message, context)
    epochs, learning_rate = context.run_config["local-epochs"], context.run_config["learning-rate"]
    loss = train(model, loader, epochs, learning_rate, device)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate_here(message: Message, context: Context) -> Message:
    model, _, loader = start(message, context)
    loss, accuracy = test(model, loader, device)
    metrics = MetricRecord({"loss": loss, "accuracy": accuracy, "num-examples": len(loader.dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
