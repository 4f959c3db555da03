"""The client's half as a Flower ClientApp: it turns messages into calls of a :class:`Site`, and back.

Nothing leaves a site but what is written here: counts and sums of its data (``hello``), trained vectors with
the losses' sums (``train``), counts of predictions (``evaluate``), and sums over features (``moments``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from vhl.algorithms.base import Server, Vectors
from vhl.data.images import ImageSet
from vhl.deploy.forms import model_forms, server_forms
from vhl.deploy.orders import Complaint, Report, Request, Sight
from vhl.deploy.site import Settings, Site, SiteError, SiteWork, saying
from vhl.deploy.terms import Terms, read_experiment
from vhl.deploy.wire import RefusedError, from_arrays, from_text, prefixed, to_arrays, to_text, unflatten
from vhl.errors import VHLError
from vhl.training.threads import choose_threads

app = ClientApp()
_log = logging.getLogger(__name__)
Answer = Callable[[RecordDict, Site], RecordDict]


def answer(message: Message, context: Context, give: Answer) -> Message:
    """An answer, or a code and a sentence: Flower itself would send an exception's text, paths and all."""
    try:
        choose_threads()
        with saying("settings", "The node's configuration is wrong; its log says how."):
            site = Site(Settings.read(context.node_config))
        content = give(message.content, site)
    except SiteError as error:
        content = _complain(error.code, error.sentence)
    except (RefusedError, VHLError) as error:
        _log.error("%s", error)
        content = _complain("message", "The message was refused; the site's log says why.")
    except Exception:
        _log.exception("A message could not be answered.")
        content = _complain("internal", "Something went wrong; the site's log says what.")
    return Message(content, reply_to=message)


def _complain(code: str, sentence: str) -> RecordDict:
    return RecordDict({"complaint": to_text(Complaint(code=code, sentence=sentence).model_dump())})


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """What the site is called and what it holds, in numbers."""

    def give(content: RecordDict, site: Site) -> RecordDict:
        facts = site.facts(read_experiment(from_text(content, "hello")))
        return RecordDict({"facts": to_text(facts.model_dump())})

    return answer(message, context, give)


@app.query("virtual")
def virtual(message: Message, context: Context) -> Message:
    """Take the server's virtual set."""

    def give(content: RecordDict, site: Site) -> RecordDict:
        terms = Terms.read(from_text(content, "terms"))
        count = from_text(content, "virtual")["images"]
        forms = {"images": (torch.uint8, (count, *terms.shape)), "labels": (torch.int64, (count,))}
        arrays = from_arrays(content, "images", forms)
        site.receive_virtual(terms, ImageSet(arrays["images"].numpy(), arrays["labels"].numpy()))
        return RecordDict({"report": to_text({"run": terms.run})})

    return answer(message, context, give)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Local training from the server's vectors."""

    def give(content: RecordDict, site: Site) -> RecordDict:
        terms, request = Terms.read(from_text(content, "terms")), Request.read(from_text(content, "order"))
        work = site.work(terms)
        server = unflatten(from_arrays(content, "server", server_forms(work.setup)))
        outcome, lost = site.train(terms, work, request, server)
        update = outcome.update
        report = Report(
            run=terms.run,
            round=request.round,
            samples=update.work.samples,
            totals={name: float(total) for name, total in outcome.totals.items()},
            keeps_state=bool(outcome.state),
            lost_state=lost,
        )
        vectors = {"parameters": update.parameters, "buffers": update.buffers}
        vectors |= prefixed("message.", update.message)
        return RecordDict({"report": to_text(report.model_dump()), "update": to_arrays(vectors)})

    return answer(message, context, give)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Predictions on held-out images, counted."""
    return answer(message, context, lambda content, site: _look(content, site, site.evaluate))


@app.query("moments")
def moments(message: Message, context: Context) -> Message:
    """Counts, sums and products of features, for the algorithms that ask for them after the last round."""
    return answer(message, context, lambda content, site: _look(content, site, site.moments))


def _look(content: RecordDict, site: Site, see: Callable[[SiteWork, Server], Vectors]) -> RecordDict:
    """What a site sees with the server's model."""
    terms, request = Terms.read(from_text(content, "terms")), Request.read(from_text(content, "order"))
    work = site.work(terms)
    server = unflatten(from_arrays(content, "server", model_forms(work.setup)))
    sight = Sight(run=terms.run, round=request.round, samples=work.setup.sizes[0])
    return RecordDict({"report": to_text(sight.model_dump()), "seen": to_arrays(see(work, server))})
