from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _on_one_thread(one_thread: None) -> None:
    """All of these."""


Stopped = Callable[..., AbstractContextManager[None]]


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Stopped:
    """Inside, a method raises an error at one of its calls, before or after it has done its work."""

    @contextmanager
    def stop(
        owner: type, method: str, call: int, error: BaseException | None = None, *, late: bool = False
    ) -> Iterator[None]:
        calls, usual = iter(range(1, 1_000)), getattr(owner, method)

        def stopping(*arguments: Any) -> Any:
            is_last = next(calls) == call
            if is_last and not late:
                raise error or KeyboardInterrupt
            result = usual(*arguments)
            if is_last:
                raise error or KeyboardInterrupt
            return result

        with monkeypatch.context() as patch, pytest.raises(type(error) if error else KeyboardInterrupt):
            patch.setattr(owner, method, stopping)
            yield

    return stop
