"""The sites that are there, by name: everything that goes to them or comes from them passes here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from vhl.deploy.orders import Complaint
from vhl.deploy.settings import RunSettings
from vhl.deploy.terms import Facts
from vhl.deploy.wire import OtherImagesError, RefusedError, from_text, to_text
from vhl.errors import VHLError
from vhl.experiment import Experiment

_PAUSE = 0.2  # seconds between looks for replies
_ASK_AGAIN = 60.0  # seconds until a node that did not answer well is asked once more who it is
_REUNION = 60.0  # seconds at most for all sites of a run that continues; it does without those still missing

Note = Callable[[str], None]


@dataclass
class _Greeting:
    """A question of who a node is."""

    number: str
    """Of the message; empty once there was an answer."""
    until: float
    """When it may be asked once more."""


class Fleet:
    """Knows nodes by the names in their own configuration, and asks them things."""

    def __init__(self, grid: Grid, experiment: Experiment, settings: RunSettings, on_note: Note) -> None:
        self._grid, self._experiment, self.settings, self.note = grid, experiment, settings, on_note
        self.nodes: dict[str, int] = {}
        """The node of each site that is there."""
        self.facts: dict[str, Facts] = {}
        """What each site has said of its data; that may not change within a run."""
        self._members: set[str] | None = None  # of the run, once they are agreed on
        self._greeted: dict[int, _Greeting] = {}

    def gather(self, count: int) -> list[Facts]:
        """Wait for so many sites."""
        if not self._wait(lambda: len(self.nodes) >= count, self.settings.wait):
            raise VHLError(
                f"{len(self.nodes)} of {count} sites came within {self.settings.wait:g} s"
                f" ({', '.join(sorted(self.nodes)) or 'none'}); start the others, or wait longer."
            )
        self._members = set(self.nodes)
        return [self.facts[name] for name in sorted(self.nodes)]

    def reunite(self, facts: Iterable[Facts]) -> None:
        """Wait a while for the sites of a run that continues, which come one by one like at its start."""
        self.facts |= {own.name: own for own in facts}
        self._members = members = set(self.facts)
        self._wait(lambda: members <= self.nodes.keys(), min(self.settings.wait, _REUNION))

    def _wait(self, enough: Callable[[], bool], seconds: float) -> bool:
        """Meet sites until there are enough of them, or the time is over."""
        until = time.monotonic() + seconds
        self.meet()
        while not enough() and time.monotonic() < until:
            time.sleep(_PAUSE)
            self.meet()
        return enough()

    def meet(self) -> None:
        """Forget nodes that have gone, ask those that have come who they are, and hear who has answered.

        Without waiting: a node that died still counts as present for a minute, and must not hold up a round.
        """
        present, now = set(self._grid.get_node_ids()), time.monotonic()
        for name, node in list(self.nodes.items()):
            if node not in present:
                self.note(f"Site {name} has gone.")
                del self.nodes[name]
        self._greeted = {n: g for n, g in self._greeted.items() if n in present and now < g.until}
        for node in sorted(present - set(self.nodes.values()) - self._greeted.keys()):
            hello = RecordDict({"hello": to_text({"experiment": self._experiment.table()})})
            number = self._push("query.hello", node, hello, _ASK_AGAIN)
            self._greeted[node] = _Greeting(number, now + _ASK_AGAIN)
        for node, greeting in self._greeted.items():
            if greeting.number and (reply := self._pull(greeting.number, node)) is not None:
                greeting.number = ""
                self._hear(node, reply)
        self._greeted = {n: g for n, g in self._greeted.items() if n not in self.nodes.values()}

    def _hear(self, node: int, reply: Message) -> None:
        if not reply.has_content():
            return
        try:
            if (said := complaint(reply.content)) is not None:
                raise RefusedError(said.sentence.rstrip("."))
            self._welcome(node, Facts.read(from_text(reply.content, "facts")))
        except RefusedError as error:
            self.note(f"Node {node} is refused: {error}.")

    def _welcome(self, node: int, facts: Facts) -> None:
        if facts.name in self.nodes:
            raise RefusedError(f"site {facts.name} is there already")
        if self.facts.setdefault(facts.name, facts) != facts:
            raise RefusedError(f"the data of site {facts.name} have changed since the run began")
        self.nodes[facts.name] = node
        if self._members is None or facts.name in self._members:
            self.note(f"Site {facts.name} has come: {sum(facts.train)} training images.")
        else:
            self.note(f"Site {facts.name} has come, but takes no part: the run was begun without it.")

    def ask(self, kind: str, contents: Mapping[str, RecordDict]) -> dict[str, RecordDict]:
        """The answers of those sites that are there and gave one in time.

        A site that did not is taken for gone until it says hello again.
        """
        seconds, found = self.settings.round_timeout, dict[str, RecordDict]()
        waiting = {
            name: self._push(kind, self.nodes[name], content, seconds)
            for name, content in contents.items()
            if name in self.nodes
        }
        until = time.monotonic() + seconds
        while waiting and time.monotonic() < until:
            for name, number in list(waiting.items()):
                if (reply := self._pull(number, self.nodes[name])) is not None:
                    del waiting[name]
                    found |= {name: reply.content} if reply.has_content() else {}
            if waiting:
                time.sleep(_PAUSE)
        for name in waiting:
            self.note(f"Site {name} did not answer within {seconds:g} s.")
            del self.nodes[name]
        return found

    def check_samples(self, name: str, samples: int) -> None:
        """A reply was made of as many training images as agreed, whatever it is about."""
        agreed = sum(self.facts[name].train)
        if samples != agreed:
            raise OtherImagesError(f"it speaks of {samples} samples, and the site has {agreed}")

    def refuse(self, name: str, error: RefusedError) -> None:
        """Say why a site's reply does not count.

        One that speaks of other images than agreed must say hello again: what it holds out now may be what
        it trained on.
        """
        self.note(f"Site {name}: its reply is refused, {error}.")
        if isinstance(error, OtherImagesError):
            self.nodes.pop(name, None)

    def _push(self, kind: str, node: int, content: RecordDict, seconds: float) -> str:
        """Send a message that is worth an answer for so long: one at a time, for others may be too large."""
        sent = list(self._grid.push_messages([Message(content, node, kind, ttl=seconds)]))
        if not sent or not sent[0]:
            raise VHLError(
                f"Flower did not take a message to {self._called(node)}; the server's log says why."
            )
        return sent[0]

    def _pull(self, number: str, node: int) -> Message | None:
        """The reply to one message, if it is there."""
        try:
            replies = list(self._grid.pull_messages([number]))
        except Exception as error:  # whatever a node sent must not end the run
            self.note(f"{self._called(node)} sent what cannot be read ({type(error).__name__}).")
            return Message(RecordDict(), node, "query")
        if not replies:
            return None
        if replies[0].has_error():
            self.note(f"{self._called(node)} did not answer (Flower's code {replies[0].error.code}).")
        return replies[0]

    def _called(self, node: int) -> str:
        return next((f"Site {name}" for name, own in self.nodes.items() if own == node), f"Node {node}")


def complaint(content: RecordDict) -> Complaint | None:
    """What a site complains of, if it does."""
    return Complaint.read(from_text(content, "complaint")) if "complaint" in content else None
