"""Files of the user's own that a run's parts come from: they may change, and be looked for from elsewhere."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from vhl.config.registry import own_file, remember_file
from vhl.experiment import Experiment, dotted
from vhl.files import read_json, write_json


@dataclass(frozen=True)
class Origin:
    """The folder that a run was begun in, and the SHA-256 of each file by the path that was given."""

    folder: Path
    files: dict[str, str]

    @classmethod
    def of(cls, experiment: Experiment) -> Origin:
        names = (str(value) for key, value in dotted(experiment).items() if key.endswith(".name"))
        places = sorted({name.rpartition(":")[0] for name in names if ".py:" in name})
        files = {place: hashlib.sha256(own_file(place).read_bytes()).hexdigest() for place in places}
        return cls(Path.cwd(), files)

    @classmethod
    def read(cls, file: Path) -> Origin | None:
        """Of a run that has parts of the user's own."""
        if not file.is_file():
            return None
        found = read_json(file)
        return cls(Path(found["folder"]), found["files"])

    def write(self, file: Path) -> None:
        if self.files:
            write_json(file, {"folder": str(self.folder), "files": self.files})

    def remember(self) -> None:
        """Let the files be found from any folder, from now on."""
        for place in self.files:
            remember_file(place, self.folder / place)

    def changed(self, now: Origin) -> str | None:
        """A file that is another one now."""
        return next((place for place, known in self.files.items() if now.files.get(place) != known), None)
