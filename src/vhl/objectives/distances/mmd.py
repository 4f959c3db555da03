"""Maximum mean discrepancy, class by class: what else equation 4's distance can be.

Both are ‖mean of k(natural, ·) − mean of k(virtual, ·)‖² for a kernel k (Gretton et al., JMLR 2012), for each
class of L2-normalised features and averaged over the classes as often as natural samples have them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vhl.objectives.distances.base import Distance


class _Discrepancy(Distance):
    def kernel(self, unit: Tensor, counted: Tensor) -> Tensor:
        """k of every pair of rows; ``counted`` (rows) is 1, or 0 for a filler."""
        raise NotImplementedError

    def __call__(
        self, natural: Tensor, labels: Tensor, weights: Tensor, virtual: Tensor, virtual_labels: Tensor
    ) -> Tensor:
        both = torch.cat([natural.flatten(1), virtual.flatten(1)])
        unit = normalize(both if both.dtype == torch.float64 else both.float())
        weights = (weights > 0).to(unit.dtype)
        every = torch.cat([labels, virtual_labels])
        same = (every[:, None] == every[None, :]).to(unit.dtype)
        ones = torch.ones_like(virtual_labels, dtype=unit.dtype)
        is_natural = torch.cat([weights, torch.zeros_like(ones)])
        is_virtual = torch.cat([torch.zeros_like(weights), ones])
        # By row: how many samples of its class each side has. A class that one side lacks is left out.
        naturals, virtuals = same @ is_natural, same @ is_virtual
        in_both = ((naturals > 0) & (virtuals > 0)).to(unit.dtype)
        difference = is_natural / naturals.clamp(min=1) - is_virtual / virtuals.clamp(min=1)
        # The class's share, n_c of all natural samples, is given to each pair of the class by its first row.
        pairs = same * (in_both * naturals * difference)[:, None] * difference[None, :]
        total = (pairs * self.kernel(unit, is_natural + is_virtual)).sum()
        return total / (in_both * is_natural).sum().clamp(min=1)


class MMD(_Discrepancy):
    """Class-wise maximum mean discrepancy with Gaussian kernels: compares whole distributions.

    Five widths, ¼ to 4 times the mean squared distance of all pairs (Long et al., ICML 2015).
    """

    def kernel(self, unit: Tensor, counted: Tensor) -> Tensor:
        squared = (2 - 2 * unit @ unit.T).clamp(min=0)
        pairs = counted[:, None] * counted[None, :]
        width = (squared * pairs).sum() / (pairs.sum() - counted.sum()).clamp(min=1)
        width = width.detach().clamp(min=torch.finfo(unit.dtype).eps)
        return torch.stack([(-squared / (factor * width)).exp() for factor in (0.25, 0.5, 1, 2, 4)]).mean(0)


class Means(_Discrepancy):
    """Squared distance of the class means, ‖μ_c − ν_c‖²: the least a pull can do."""

    def kernel(self, unit: Tensor, counted: Tensor) -> Tensor:
        return unit @ unit.T
