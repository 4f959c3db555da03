"""The network, a site's data and its training."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from vhl.dropin import VirtualHomogeneity

vhl = VirtualHomogeneity(classes=10, size=(8, 8), channels=1, head="fc")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(32 * 2 * 2, vhl.outputs)

    def forward(self, images):
        maps = self.pool(self.conv1(images).relu())
        maps = self.pool(self.conv2(maps).relu())
        return self.fc(maps.flatten(1))


def load_data(site, sites):
    """Training images of this site's classes alone; test images, every fifth, of all classes."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None]
    images = (images / 16 - 0.3) / 0.4
    labels = torch.tensor(digits.target)
    is_test = torch.arange(len(labels)) % 5 == 4
    own = ~is_test & (labels % sites == site)
    train_loader = DataLoader(TensorDataset(images[own], labels[own]), batch_size=32, shuffle=True)
    test_loader = DataLoader(TensorDataset(images[is_test], labels[is_test]), batch_size=256)
    return train_loader, test_loader


def train(model, loader, epochs, learning_rate, device):
    """The mean loss of a batch."""
    model.to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    total = 0.0
    for _ in range(epochs):
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = vhl.loss(model, images, labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(loader))


@torch.no_grad()
def test(model, loader, device):
    """Mean loss and accuracy."""
    model.to(device).eval()
    loss = correct = 0.0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        logits = model(images)[:, : vhl.classes]
        loss += cross_entropy(logits, labels, reduction="sum").item()
        correct += (logits.argmax(1) == labels).sum().item()
    samples = len(loader.dataset)
    return loss / samples, correct / samples
