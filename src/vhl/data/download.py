"""Fetching a source's official files: the whole of a file, checked, or nothing of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    with _shown(console, file) as bar:
        # pooch writes beside the target and renames only what has the right hash
        pooch.retrieve(
            file.url,
            f"sha256:{file.sha256}",
            target.name,
            target.parent,
            downloader=pooch.HTTPDownloader(
                progressbar=bar,
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


@contextmanager
def _shown(console: Console, file: OfficialFile) -> Iterator[_Bar]:
    if not console.is_terminal:
        console.print(f"Fetching {file.url}", soft_wrap=True)
        yield _Bar(_Lines(console))
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(Path(file.path).name, total=None)
        yield _Bar(lambda done, total: progress.update(task, completed=done, total=total or None))


class _Bar:
    """A progress bar as pooch expects it, which tells ``show`` how many bytes of how many are there."""

    def __init__(self, show: Callable[[int, int], None]) -> None:
        self.total, self.done, self.show = 0, 0, show

    def update(self, amount: int) -> None:
        self.done += amount
        self.show(min(self.done, self.total or self.done), self.total)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        """Nothing to do: whoever made the bar ends it."""


class _Lines:
    """Progress as a line a quarter of the file."""

    def __init__(self, console: Console) -> None:
        self.console, self.quarters = console, 0

    def __call__(self, done: int, total: int) -> None:
        quarters = 4 * done // total if total else 0
        if quarters > self.quarters:
            self.quarters = quarters
            self.console.print(f"{25 * quarters} % of {decimal(total)}")
