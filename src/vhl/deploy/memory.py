"""What a site's client keeps from round to round."""

from __future__ import annotations

import logging
from pathlib import Path

from vhl.algorithms.base import Vectors
from vhl.errors import VHLError
from vhl.files import write_tensors
from vhl.models.files import read_tensors

_log = logging.getLogger(__name__)


class Memory:
    """A folder with the client's vectors after its latest rounds, of one run at one site.

    The server alone knows whether a round counted. So the vectors after a round are kept beside those that
    it started from, until the next order says which of them to go on from.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def recall(self, round_: int | None) -> Vectors | None:
        """What was kept after this round; nothing where there was none, or where it is lost."""
        if round_ is None:
            return None
        file = self._file(round_)
        try:
            return read_tensors(file)[0] if file.is_file() else None
        except VHLError as error:
            _log.error("%s", error)
            return None

    def keep(self, round_: int, vectors: Vectors, *, beside: int | None) -> None:
        """Keep the vectors after a round beside those of the round before it, and no others."""
        if not vectors:
            return
        write_tensors(self._file(round_), vectors)
        needed = {self._file(number) for number in (round_, beside) if number is not None}
        for file in self._folder.iterdir():
            if file not in needed:
                file.unlink(missing_ok=True)

    def _file(self, round_: int) -> Path:
        return self._folder / f"round-{round_:06d}.safetensors"
