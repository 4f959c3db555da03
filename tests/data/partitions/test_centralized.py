from __future__ import annotations

from vhl.data.partitions.centralized import Centralized


def test_one_client_holds_everything(make_dataset) -> None:
    (part,) = Centralized().assign(make_dataset([1, 0, 1, 1], 2), 0)
    assert part.tolist() == [0, 1, 2, 3]
