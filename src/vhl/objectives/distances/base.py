"""What a distance is: d(P_k(φ|y), P_v(φ|y)) of VHL's equation 4, on one batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from vhl.config.component import Component

if TYPE_CHECKING:
    from torch import Tensor


class Distance(Component):
    """Measures, class by class, how far natural features lie from virtual ones."""

    room: ClassVar[str] = "distances"

    def __call__(
        self, natural: Tensor, labels: Tensor, weights: Tensor, virtual: Tensor, virtual_labels: Tensor
    ) -> Tensor:
        """A scalar to minimise.

        ``natural`` is (N, d) with ``labels`` (N) and ``weights`` (N), 0 for fillers that must not count;
        ``virtual`` is (M, d) with ``virtual_labels`` (M), already detached where the objective says so.
        """
        raise NotImplementedError
