"""A process that has everything imported and forks a child for each run, so that killing one costs no start.

It reads a job a line from standard input (JSON) and answers with what became of it. No network is trained
in this process itself: PyTorch's autograd does not survive a fork.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import torch

from vhl.experiment import Experiment
from vhl.rounds.local import local
from vhl.session.session import Session


class Reaper:
    """Counts the moments around each write to disk, and ends the process at the one asked for."""

    def __init__(self, log: Path, kill_at: int | None) -> None:
        self.log, self.kill_at, self.count = log, kill_at, 0
        self.open, self.replace, self.unlink = Path.open, Path.replace, Path.unlink

    def watch(self) -> None:
        reaper = self

        def replace(path: Path, target: Path) -> Path:
            reaper.moment(f"before the rename of {target.name}")
            result = reaper.replace(path, target)
            reaper.moment(f"after the rename of {target.name}")
            return result

        def unlink(path: Path, missing_ok: bool = False) -> None:
            existed = path.exists()
            reaper.unlink(path, missing_ok=missing_ok)
            if existed:
                reaper.moment(f"after the removal of {path.name}")

        def open_(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            file = reaper.open(path, mode, *arguments, **options)
            return _InHalves(file, path.name, reaper) if mode in ("wb", "a") else file

        Path.replace, Path.unlink, Path.open = replace, unlink, open_  # type: ignore[method-assign, assignment]
        os.fsync = lambda descriptor: None  # what a killed process wrote is the kernel's already

    def moment(self, what: str) -> None:
        with self.open(self.log, "a") as log:
            log.write(what + "\n")
        if self.count == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1


class _InHalves:
    """A file that reaches the disk in two halves, with a moment between them."""

    def __init__(self, file: BinaryIO | TextIO, name: str, reaper: Reaper) -> None:
        self.file, self.name, self.reaper = file, name, reaper

    def __enter__(self) -> _InHalves:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, content: Any) -> None:
        self.file.write(content[: len(content) // 2])
        self.file.flush()
        self.reaper.moment(f"half of {self.name}")
        self.file.write(content[len(content) // 2 :])

    def flush(self) -> None:
        self.file.flush()

    def fileno(self) -> int:
        return self.file.fileno()


def run(job: dict[str, Any], log: Path) -> None:
    Reaper(log, job.get("kill_at")).watch()
    experiment = Experiment.read(Path(job["experiment"]))
    for _ in Session(experiment, Path(job["runs"]), resume=job["resume"], data_dir=Path(job["data_dir"])):
        pass


def do(job: dict[str, Any], log: Path) -> dict[str, Any]:
    log.unlink(missing_ok=True)
    started = time.perf_counter()
    child = os.fork()
    if child == 0:
        run(job, log)
        os._exit(0)
    kill_after = job.get("kill_after")
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if kill_after is not None and time.perf_counter() - started > kill_after:
            os.kill(child, signal.SIGKILL)
            kill_after = None
        time.sleep(0.001)
    moments = log.read_text().splitlines() if log.exists() else []
    return {"status": ended[1], "seconds": time.perf_counter() - started, "moments": moments}


def main() -> None:
    torch.set_num_threads(1)
    warm, data_dir = Path(sys.argv[1]), Path(sys.argv[2])
    local(Experiment.read(warm), data_dir)  # imports all that a run imports, and makes the virtual set
    for line in sys.stdin:
        print(json.dumps(do(json.loads(line), data_dir / "moments.log")), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
