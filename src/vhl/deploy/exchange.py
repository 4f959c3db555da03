"""What the server asks of sites in a run, again if need be, with every answer checked alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

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


class Exchange:
    """One run's questions: they carry its terms, and the virtual set to sites that lack it."""

    def __init__(self, fleet: Fleet, terms: Terms, virtual: ImageSet | None) -> None:
        self.fleet, self._virtual, self._looks = fleet, virtual, 0
        self.terms = replace(terms, virtual=None if virtual is None else virtual.fingerprint())

    def ask(self, kind: str, contents: Mapping[str, RecordDict]) -> dict[str, RecordDict]:
        """Answers that are no complaints; a site that lacks the virtual set gets it, and is asked again."""
        answers, lacking = self._sorted(self.fleet.ask(kind, contents))
        if lacking:
            self._give_virtual(lacking)
            again = {name: contents[name] for name in lacking if name in self.fleet.nodes}
            more, still = self._sorted(self.fleet.ask(kind, again))
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
                self.fleet.note(f"Site {name}: refused, {error}.")
                continue
            if said is None:
                answers[name] = content
            elif said.code == "virtual":
                lacking.append(name)
            else:
                self.fleet.note(f"Site {name}: {said.sentence} ({said.code})")
        return answers, lacking

    def look(
        self,
        kind: str,
        server: Server,
        forms: Mapping[str, Mapping[str, Form]],
        check: Callable[[str, Mapping[str, Tensor]], None],
    ) -> dict[str, dict[str, Tensor]]:
        """What these sites see with a model, in their order; each answer is checked alone."""
        found: dict[str, dict[str, Tensor]] = {}
        self._looks += 1
        order = to_text(Request(round=self._looks, rate=0.0).model_dump())
        model = to_arrays({"parameters": server.parameters, "buffers": server.buffers})
        content = RecordDict({"terms": to_text(self.terms.table()), "order": order, "server": model})

        def ask(names: list[str]) -> set[str]:
            for name, reply in self.ask(kind, dict.fromkeys(names, content)).items():
                try:
                    self._check_question(name, Sight.read(from_text(reply, "report")))
                    seen = from_arrays(reply, "seen", forms[name])
                    check(name, seen)
                    found[name] = seen
                except RefusedError as error:
                    self.fleet.refuse(name, error)
            return set(found)

        self.until_enough(f"{kind} {self._looks}", list(forms), ask)
        return {name: found[name] for name in forms if name in found}

    def _check_question(self, name: str, sight: Sight) -> None:
        if (sight.run, sight.round) != (self.terms.run, self._looks):
            raise RefusedError("it answers another question")
        self.fleet.check_samples(name, sight.samples)

    def until_enough(self, what: str, wanted: Sequence[str], ask: Callable[[list[str]], set[str]]) -> None:
        """Ask those that are there of ``wanted``, again if need be, until enough have answered well."""
        settings, answered = self.fleet.settings, set[str]()
        needed, until = settings.needed(len(wanted)), time.monotonic() + settings.wait
        while True:
            self.fleet.meet()
            answered |= ask([name for name in wanted if name in self.fleet.nodes and name not in answered])
            if len(answered) >= needed:
                return
            if time.monotonic() > until:
                raise VHLError(
                    f"{what.capitalize()}: {len(answered)} of the {needed} sites needed answered within "
                    f"{settings.wait:g} s; see that they run, then continue with resume=true."
                )
            time.sleep(_PAUSE)
