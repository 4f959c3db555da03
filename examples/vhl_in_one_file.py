"""Virtual Homogeneity Learning in one file: FedAvg with and without it on digits, in plain PyTorch.

Where clients hold different classes, their models drift apart. VHL gives all of them the same virtual images,
noise with a distribution of its own for each class, and pulls natural features to the virtual ones of their
class (Tang et al., ICML 2022). `python examples/vhl_in_one_file.py` takes less than a minute; read it from
top to bottom.
"""

import copy

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES, CLIENTS, EACH_ROUND, ALPHA = 10, 10, 3, 0.05
EPOCHS, BATCH, LR = 5, 32, 0.02
Labelled = tuple[Tensor, Tensor]  # images (N, 1, 8, 8) and their labels (N)


def digits() -> tuple[Labelled, Labelled]:
    """Training and test images, brought to mean 0 and deviation 1; every fifth image is a test image."""
    pixels, targets = load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(targets)
    images, is_test = (images - images.mean()) / images.std(), torch.arange(len(labels)) % 5 == 4
    return (images[~is_test], labels[~is_test]), (images[is_test], labels[is_test])


def deal(labels: Tensor, rng: np.random.Generator) -> list[Tensor]:
    """Which images each client holds: every class is cut by random shares, unequal ones where α is small."""
    while True:
        cut = []
        for label in range(CLASSES):
            members = rng.permutation(np.flatnonzero(labels == label))
            ends = np.cumsum(rng.dirichlet(np.full(CLIENTS, ALPHA))) * len(members)
            cut.append(np.split(members, ends[:-1].astype(int)))
        parts = [np.concatenate(pieces) for pieces in zip(*cut, strict=True)]
        if min(map(len, parts)) >= CLASSES:
            return [torch.tensor(part) for part in parts]


def noise(per_class: int = 100) -> Labelled:
    """Virtual images, which have seen no digit: for each class a Gaussian on a coarse grid, up-sampled."""
    labels = torch.arange(CLASSES).repeat_interleave(per_class)
    coarse = torch.randn(CLASSES, 1, 4, 4)[labels] + 0.5 * torch.randn(len(labels), 1, 4, 4)
    images = F.interpolate(coarse, (8, 8), mode="bilinear").clamp(0, 1)
    return (images - 0.5) / 0.25, labels


class Network(nn.Module):
    """Three convolutions with batch norm, and a linear classifier: returns features and logits."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, channels in ((1, 16), (16, 32), (32, 64)):
            layers += [nn.Conv2d(inputs, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]
            layers += [nn.MaxPool2d(2)]
        self.body, self.head = nn.Sequential(*layers, nn.Flatten()), nn.Linear(64, outputs)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(images)
        return features, self.head(features)


def supcon(features: Tensor, labels: Tensor, temperature: float = 0.07) -> Tensor:
    """Supervised contrastive loss (Khosla et al., NeurIPS 2020): samples of one class attract each other.

    Each sample in turn is the anchor and chooses among all others; the loss is small where it would choose
    those of its own label. An anchor that has none of these adds 0, and still counts in the mean.
    """
    directions, itself = F.normalize(features), torch.eye(len(labels), dtype=torch.bool)
    similarity = (directions @ directions.T / temperature).masked_fill(itself, -torch.inf)
    positive = (labels[:, None] == labels[None, :]) & ~itself
    log_choice = torch.where(positive, similarity.log_softmax(1), 0.0).sum(1)
    return -(log_choice / positive.sum(1).clamp(min=1)).mean()


def objective(features: Tensor, logits: Tensor, labels: Tensor, virtual: Tensor, pull: float = 1.0) -> Tensor:
    """The paper's equation 4. The first rows are natural and have ``labels``, the others are ``virtual``.

    The classifier tells natural from virtual classes: virtual class c has an output of its own, C + c. In the
    pull both are one class, and its gradient stops at the virtual features: all clients have them in common.
    """
    n = len(labels)
    classified = F.cross_entropy(logits[:n], labels) + F.cross_entropy(logits[n:], CLASSES + virtual)
    together = torch.cat([features[:n], features[n:].detach()])
    return classified + pull * supcon(together, torch.cat([labels, virtual]))


def local_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, natural: Labelled, virtual: Labelled | None
) -> None:
    """One step of a client; with VHL, both batches go through the network and its batch norm together."""
    images, labels = natural
    if virtual is None:
        loss = F.cross_entropy(model(images)[1], labels)
    else:
        features, logits = model(torch.cat([images, virtual[0]]))
        loss = objective(features, logits, labels, virtual[1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def train(model: nn.Module, images: Tensor, labels: Tensor, virtual: Labelled | None) -> nn.Module:
    """A client's part of a round: some epochs of SGD, whose momentum starts at zero."""
    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.9, weight_decay=1e-4)
    model.train()
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(labels)).split(BATCH):
            joined = None
            if virtual is not None:
                drawn = torch.randint(len(virtual[1]), (BATCH,))
                joined = virtual[0][drawn], virtual[1][drawn]
            local_step(model, optimizer, (images[rows], labels[rows]), joined)
    return model


def average(models: list[nn.Module], sizes: list[int]) -> dict[str, Tensor]:
    """FedAvg (McMahan et al., 2017): Σ nₖ wₖ / Σ nₖ of weights and of batch-norm statistics alike."""
    shares, states = [size / sum(sizes) for size in sizes], [model.state_dict() for model in models]
    return {n: sum(p * state[n] for p, state in zip(shares, states, strict=True)) for n in states[0]}


@torch.no_grad()
def accuracy(model: nn.Module, test: Labelled) -> float:
    """The share of test images whose largest output is their class; a virtual class is an error."""
    return float((model.eval()(test[0])[1].argmax(1) == test[1]).float().mean())


def federated(with_vhl: bool, seed: int, rounds: int) -> list[float]:
    """The accuracy of the server's model after each round; a seed deals the digits out in the same way."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    (images, labels), test = digits()
    parts = deal(labels, rng)
    virtual, server = (noise(), Network(2 * CLASSES)) if with_vhl else (None, Network(CLASSES))
    accuracies = []
    for _ in range(rounds):
        chosen = [parts[client] for client in rng.choice(CLIENTS, EACH_ROUND, replace=False)]
        models = [train(copy.deepcopy(server), images[part], labels[part], virtual) for part in chosen]
        server.load_state_dict(average(models, [len(part) for part in chosen]))
        accuracies.append(accuracy(server, test))
    return accuracies


def main(seeds: int = 3, rounds: int = 25, last: int = 10) -> None:
    print(f"Test accuracy, mean of the last {last} of {rounds} rounds and best round:")
    for seed in range(seeds):
        line = []
        for name, with_vhl in (("FedAvg", False), ("FedAvg + VHL", True)):
            found = federated(with_vhl, seed, rounds)
            line.append(f"{name} {np.mean(found[-last:]):.1%} and {max(found):.1%}")
        print(f"seed {seed}:  {',  '.join(line)}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # so small a network is slower on more
    main()
