from __future__ import annotations

import pytest

from vhl.config.registry import build
from vhl.data.partitions.base import Partition
from vhl.data.partitions.centralized import Centralized
from vhl.errors import VHLError


def test_one_client_holds_everything(make_dataset) -> None:
    (part,) = Centralized().assign(make_dataset([1, 0, 1, 1], 2), 0)
    assert part.tolist() == [0, 1, 2, 3]


def test_takes_no_number_of_clients() -> None:
    with pytest.raises(VHLError, match="centralized has no option 'clients'"):
        build(Partition, "partition", {"name": "centralized", "clients": 5})
