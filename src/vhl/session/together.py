"""Several runs in one process, side by side: while clients of one are uneven, another fills the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from contextlib import ExitStack

from vhl.errors import VHLError
from vhl.runs.record import Record
from vhl.session.session import Session

Event = tuple[Session, Record | VHLError | None]
"""What became of a session: a record, the error that ended it, or ``None`` at its good end."""


def together(sessions: Iterable[Session], at_once: int) -> Generator[Event]:
    """Run the sessions, ``at_once`` at a time; one that fails does not stop the others.

    Closing the generator saves what was done, as it does in a single session.
    """
    waiting, running = deque(sessions), dict[Session, Generator[Record | None]]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                session = waiting.popleft()
                running[session] = session.steps()
            for session in running:
                session.side_by_side = len(running)
            for session, steps in list(running.items()):
                yield from _next(session, steps, running)
    finally:
        with ExitStack() as closing:  # one that cannot be saved does not keep the others from it
            for steps in running.values():
                closing.callback(steps.close)


def _next(
    session: Session, steps: Generator[Record | None], running: dict[Session, Generator[Record | None]]
) -> Generator[Event]:
    try:
        record = next(steps)
    except StopIteration:
        del running[session]
        yield session, None
    except VHLError as error:
        del running[session]
        yield session, error
    else:
        if record is not None:
            yield session, record
