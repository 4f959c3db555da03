"""What simulations in one process share: the lanes of a device, and data that lie on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from pydantic import BaseModel

from vhl.config.sections import Engine
from vhl.training.client_data import NaturalData, VirtualData
from vhl.training.lanes import Lanes
from vhl.training.precision import Numerics
from vhl.training.recipe import Note

Item = TypeVar("Item")


class Shelf(Generic[Item]):
    """Things that are shared for as long as someone uses them."""

    def __init__(self) -> None:
        self._items: WeakValueDictionary[str, Item] = WeakValueDictionary()

    def get(self, make: Callable[[], Item], *words: object) -> Item:
        """What lies here under these words, or else what ``make`` makes."""
        key = json.dumps([w.model_dump(mode="json") if isinstance(w, BaseModel) else str(w) for w in words])
        item = self._items.get(key)
        if item is None:
            item = self._items[key] = make()
        return item


class Workshop:
    """Give the same one to several simulations and they run side by side."""

    def __init__(self) -> None:
        self.natural: Shelf[NaturalData] = Shelf()
        self.virtual: Shelf[VirtualData] = Shelf()
        self._lanes: dict[tuple[Engine, Numerics], Lanes] = {}

    def lanes(self, engine: Engine, numerics: Numerics, on_note: Note) -> Lanes:
        """Lanes outlive an experiment: the next may take the same steps."""
        if (engine, numerics) not in self._lanes:
            self._lanes[engine, numerics] = Lanes(engine, numerics, on_note)
        return self._lanes[engine, numerics]
