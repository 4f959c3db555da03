"""Supervised contrastive loss (Khosla et al., NeurIPS 2020), the paper's instance of the distance."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from vhl.objectives.distances.base import Distance


def supcon(
    features: Tensor, labels: Tensor, weights: Tensor | None = None, temperature: float = 0.07
) -> Tensor:
    r"""Supervised contrastive loss of L2-normalised features.

    .. math:: -\frac{1}{|I|} \sum_{i \in I} \frac{1}{|P(i)|} \sum_{p \in P(i)}
              \log \frac{\exp(z_i \cdot z_p / \tau)}{\sum_{a \in I \setminus i} \exp(z_i \cdot z_a / \tau)}

    I are the samples of weight 1 and P(i) the others of i's label. A sample of weight 0 is left out
    everywhere; an anchor without a positive adds 0 and still counts in the mean.

    >>> supcon(torch.eye(2), torch.tensor([0, 0])).abs().item()  # one positive, no negative
    0.0
    """
    counted = torch.ones_like(labels, dtype=torch.bool) if weights is None else weights > 0
    unit = normalize(features.flatten(1).float() if features.dtype != torch.float64 else features.flatten(1))
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    others = counted[None, :] & ~itself
    similarity = (unit @ unit.T / temperature).masked_fill(~others, torch.finfo(unit.dtype).min)
    log_probability = similarity - similarity.logsumexp(1, keepdim=True)
    positive = others & (labels[:, None] == labels[None, :])
    total = torch.where(positive, log_probability, 0.0).sum(1) / positive.sum(1).clamp(min=1)
    return -torch.where(counted, total, 0.0).sum() / counted.sum().clamp(min=1)


class SupCon(Distance):
    """Supervised contrastive loss over natural and virtual features together (the paper's choice)."""

    temperature: float = Field(0.07, gt=0, description="τ: the smaller, the harder the nearest samples pull")

    def __call__(
        self, natural: Tensor, labels: Tensor, weights: Tensor, virtual: Tensor, virtual_labels: Tensor
    ) -> Tensor:
        return supcon(
            torch.cat([natural.flatten(1), virtual.flatten(1)]),
            torch.cat([labels, virtual_labels]),
            torch.cat([weights, torch.ones_like(virtual_labels, dtype=weights.dtype)]),
            self.temperature,
        )
