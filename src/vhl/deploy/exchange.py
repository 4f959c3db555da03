"""What the server asks of sites in a run, again if need be, with every answer checked alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from flwr.app import RecordDict
from torch import Tensor

from vhl.algorithms.base import Server
from vhl.data.images import ImageSet
from vhl.deploy.fleet import Fleet, complaint
from vhl.deploy.orders import Request, Sight
from vhl.deploy.terms import Terms
from vhl.deploy.wire import Form, RefusedError, from_arrays, from_text, to_arrays, to_text
from vhl.errors import VHLError

_PAUSE = 1.0  # seconds between attempts at a round that too few sites answered


Answer = TypeVar("Answer")


class Exchange:
    """One run's questions: they carry its terms, and the virtual set to sites that lack it."""

    def __init__(self, fleet: Fleet, terms: Terms, virtual: ImageSet | None) -> None:
        self.fleet, self._virtual, self._looks = fleet, virtual, 0
        self.terms = replace(terms, virtual=None if virtual is None else virtual.fingerprint())

    def collect(
        self,
        what: str,
        kind: str,
        questions: Mapping[str, RecordDict],
        read: Callable[[str, RecordDict], Answer],
    ) -> dict[str, Answer]:
        """Ask sites until enough have answered well; their answers, in the order of the questions.

        ``read`` makes something of one site's answer, or refuses it.
        """
        settings, found = self.fleet.settings, dict[str, Answer]()
        needed, until = settings.needed(len(questions)), time.monotonic() + settings.wait
        while True:
            self.fleet.meet()
            left = {name: question for name, question in questions.items() if name not in found}
            for name, content in self._ask(kind, left).items():
                try:
                    found[name] = read(name, content)
                except RefusedError as error:
                    self.fleet.refuse(name, error)
            if len(found) >= needed:
                return {name: found[name] for name in questions if name in found}
            if time.monotonic() > until:
                raise VHLError(
                    f"{what.capitalize()}: {len(found)} of the {needed} sites needed answered within "
                    f"{settings.wait:g} s; see that they run, then continue with resume=true."
                )
            time.sleep(_PAUSE)

    def look(
        self,
        kind: str,
        server: Server,
        forms: Mapping[str, Mapping[str, Form]],
        check: Callable[[str, Mapping[str, Tensor]], None],
    ) -> dict[str, dict[str, Tensor]]:
        """What these sites see with a model, each of its form."""
        self._looks += 1
        number = self._looks
        order = to_text(Request(round=number, rate=0.0).model_dump())
        model = to_arrays({"parameters": server.parameters, "buffers": server.buffers})
        question = RecordDict({"terms": to_text(self.terms.table()), "order": order, "server": model})

        def read(name: str, content: RecordDict) -> dict[str, Tensor]:
            sight = Sight.read(from_text(content, "report"))
            if (sight.run, sight.round) != (self.terms.run, number):
                raise RefusedError("it answers another question")
            self.fleet.check_samples(name, sight.samples)
            seen = from_arrays(content, "seen", forms[name])
            check(name, seen)
            return seen

        return self.collect(f"{kind} {number}", kind, dict.fromkeys(forms, question), read)

    def _ask(self, kind: str, questions: Mapping[str, RecordDict]) -> dict[str, RecordDict]:
        """Answers that are no complaints; a site that lacks the virtual set gets it, and is asked again."""
        answers, lacking = self._sorted(self.fleet.ask(kind, questions))
        if lacking:
            self._give_virtual(lacking)
            more, still = self._sorted(self.fleet.ask(kind, {name: questions[name] for name in lacking}))
            answers |= more
            for name in still:
                self.fleet.note(f"Site {name} does not keep the virtual set.")
        return answers

    def _give_virtual(self, names: Sequence[str]) -> None:
        assert self._virtual is not None
        images = {"images": self._virtual.images, "labels": self._virtual.labels}
        arrays = to_arrays({name: torch.from_numpy(array) for name, array in images.items()})
        count = to_text({"images": len(self._virtual)})
        gift = RecordDict({"terms": to_text(self.terms.table()), "virtual": count, "images": arrays})
        self.fleet.note(f"The virtual set goes to {', '.join(names)}.")
        self.fleet.ask("query.virtual", dict.fromkeys(names, gift))

    def _sorted(self, found: Mapping[str, RecordDict]) -> tuple[dict[str, RecordDict], list[str]]:
        """Answers, and who lacks the virtual set."""
        answers, lacking = {}, []
        for name, content in found.items():
            try:
                said = complaint(content)
            except RefusedError as error:
                self.fleet.refuse(name, error)
                continue
            if said is None:
                answers[name] = content
            elif said.code == "virtual" and self._virtual is not None:
                lacking.append(name)
            else:
                self.fleet.note(f"Site {name}: {said.sentence} ({said.code})")
        return answers, lacking
