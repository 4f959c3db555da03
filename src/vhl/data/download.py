"""Fetching a source's official files: the whole of a file, checked, or nothing of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from vhl.config.registry import identify
from vhl.data.check import check
from vhl.data.sources._official import OfficialFile
from vhl.data.sources._reading import get_command
from vhl.data.sources.base import Source
from vhl.errors import VHLError

_CHUNK = 1 << 16


def get(name: str, data_dir: Path, *, console: Console | None = None, timeout: float = 30) -> list[Path]:
    """Fetch the official files of a source that are absent or wrong; the files fetched.

    ``timeout`` is how many seconds a server may stay silent. Progress is shown on ``console`` (standard error
    unless given): a bar on a terminal, plain lines elsewhere.
    """
    source = identify(Source, {"name": name})[0]
    if source.primary is not None:
        raise VHLError(f"{name} reads your own images; there is nothing to fetch.")
    if source.fingerprint is not None and check(name, data_dir).official:
        return []  # the right images may be there in another form than the file we would fetch
    console = console or Console(stderr=True)
    fetched = []
    for file in source.official:
        target = data_dir / file.path
        with _all_or_nothing(file, target, get_command(name, data_dir), timeout):
            if not file.is_at(target):
                _fetch(file, target, console, timeout)
                fetched.append(target)
    return fetched


def _fetch(file: OfficialFile, target: Path, console: Console, timeout: float) -> None:
    import pooch

    pooch.get_logger().setLevel("WARNING")  # the progress says the rest
    target.parent.mkdir(parents=True, exist_ok=True)
    shown = _Shown(console, file)
    with shown.bar:
        # pooch writes beside the target and renames only what has the right hash
        pooch.retrieve(
            file.url,
            f"sha256:{file.sha256}",
            target.name,
            target.parent,
            downloader=pooch.HTTPDownloader(
                progressbar=shown,
                chunk_size=_CHUNK,
                timeout=timeout,
                headers={"Accept-Encoding": "identity"},  # the archive itself, not what a proxy unpacked
            ),
        )
    target.chmod(0o644)  # the temporary file was for its owner's eyes only; a data directory may be shared


@contextmanager
def _all_or_nothing(file: OfficialFile, target: Path, command: str, timeout: float) -> Iterator[None]:
    """Turn what goes wrong inside into one sentence, and take back the folders that were made for it."""
    made = [folder for folder in target.parents if not folder.exists()]
    try:
        yield
    except (OSError, ValueError, KeyboardInterrupt) as error:
        for folder in made:
            with suppress(OSError):  # others may have put something into it
                folder.rmdir()
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(f"Nothing of {file.url} was kept; {command} to start again.") from None
        raise VHLError(_explain(error, file, target, command, timeout)) from error


def _explain(error: Exception, file: OfficialFile, target: Path, command: str, timeout: float) -> str:
    from requests import ConnectionError, HTTPError, RequestException, Timeout

    if isinstance(error, HTTPError) and error.response is not None:
        answer = f"{error.response.status_code} {error.response.reason}".strip()
        return f"{file.url} answered {answer}; {command} later, or save the file as {target} yourself."
    if isinstance(error, Timeout) or (isinstance(error, ConnectionError) and "timed out" in str(error)):
        return f"{file.url} stayed silent for {timeout:g} seconds; {command} again."
    if isinstance(error, ConnectionError):
        return f"{file.url} cannot be reached; check the network and {command} again."
    if isinstance(error, RequestException):
        return f"{file.url} broke off in mid-file; {command} again."
    if isinstance(error, OSError):
        return f"{target} cannot be written ({error.strerror or error}); make room for it, or set --data-dir."
    return f"What {file.url} sent is not the official file (its SHA-256 differs); {command} again."


class _Shown:
    """A file's progress, as pooch tells it: a bar on a terminal, elsewhere a line a quarter of the file."""

    total = 0
    """Bytes in all: set by pooch when the server has said how many."""

    def __init__(self, console: Console, file: OfficialFile) -> None:
        self.console, self.done, self.quarters = console, 0, 0
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=console, disable=not console.is_terminal)
        self.task = self.bar.add_task(Path(file.path).name, total=None)
        if not console.is_terminal:
            console.print(f"Fetching {file.url}", soft_wrap=True)

    def update(self, amount: int) -> None:
        """Pooch counts whole chunks, so the last one may reach past the end."""
        self.done = min(self.done + amount, self.total or sys.maxsize)
        self.bar.update(self.task, completed=self.done, total=self.total or None)
        quarters = 4 * self.done // self.total if self.total else 0
        if self.bar.disable and quarters > self.quarters:
            self.quarters = quarters
            self.console.print(f"{25 * quarters} % of {decimal(self.total)}")

    def reset(self) -> None:
        """Pooch starts again to fill a bar that is not full; ours needs no filling."""

    def close(self) -> None:
        """Whoever made the bar ends it."""
