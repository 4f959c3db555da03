"""The client's half as a Flower ClientApp: it turns messages into calls of a :class:`Site`, and back.

Nothing leaves a site but what is written here: counts and sums of its data (``hello``), trained vectors with
the losses' sums (``train``), counts of predictions (``evaluate``), and sums over features (``moments``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from vhl.algorithms.base import Server, Vectors
from vhl.data.images import ImageSet
from vhl.deploy.forms import model_forms, server_forms
from vhl.deploy.orders import Complaint, Report, Request, Sight
from vhl.deploy.own_data import describe
from vhl.deploy.settings import NodeSettings
from vhl.deploy.site import Site, SiteError, receive_virtual, saying
from vhl.deploy.terms import Terms, read_experiment
from vhl.deploy.wire import (
    Form,
    RefusedError,
    from_arrays,
    from_text,
    prefixed,
    to_arrays,
    to_text,
    unflatten,
)
from vhl.errors import VHLError
from vhl.training.threads import choose_threads

app = ClientApp()
_log = logging.getLogger(__name__)
Answer = Callable[[RecordDict, NodeSettings], RecordDict]


def answering(answer: Answer) -> Callable[[Message, Context], Message]:
    """An answer, or a code and a sentence: Flower itself would send an exception's text, paths and all."""

    def reply(message: Message, context: Context) -> Message:
        try:
            choose_threads()
            with saying("settings", "The node's configuration is wrong; its log says how."):
                settings = NodeSettings.read(context.node_config)
            content = answer(message.content, settings)
        except SiteError as error:
            content = _complain(error.code, error.sentence)
        except (RefusedError, VHLError) as error:
            _log.error("%s", error)
            content = _complain("message", "The message was refused; the site's log says why.")
        except Exception:
            _log.exception("A message could not be answered.")
            content = _complain("internal", "Something went wrong; the site's log says what.")
        return Message(content, reply_to=message)

    return reply


def _complain(code: str, sentence: str) -> RecordDict:
    return RecordDict({"complaint": to_text(Complaint(code=code, sentence=sentence).model_dump())})


@app.query("hello")
@answering
def hello(content: RecordDict, settings: NodeSettings) -> RecordDict:
    """What the site is called and what it holds, in numbers."""
    experiment = read_experiment(from_text(content, "hello"))
    with saying("data", "The site's data could not be read; its log says why."):
        facts = describe(settings, experiment)
    return RecordDict({"facts": to_text(facts.model_dump())})


@app.query("virtual")
@answering
def virtual(content: RecordDict, settings: NodeSettings) -> RecordDict:
    """Take the server's virtual set."""
    terms = Terms.read(from_text(content, "terms"))
    count = from_text(content, "virtual")["images"]
    forms = {"images": (torch.uint8, (count, *terms.shape)), "labels": (torch.int64, (count,))}
    arrays = from_arrays(content, "images", forms)
    receive_virtual(settings, terms, ImageSet(arrays["images"].numpy(), arrays["labels"].numpy()))
    return RecordDict({"report": to_text({"run": terms.run})})


@app.train()
@answering
def train(content: RecordDict, settings: NodeSettings) -> RecordDict:
    """Local training from the server's vectors."""
    terms, request, site = _order(content, settings)
    outcome, lost = site.train(request, _server(content, site, server_forms(site.setup)))
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


@app.evaluate()
@answering
def evaluate(content: RecordDict, settings: NodeSettings) -> RecordDict:
    """Predictions on held-out images, counted."""
    return _look(content, settings, Site.evaluate)


@app.query("moments")
@answering
def moments(content: RecordDict, settings: NodeSettings) -> RecordDict:
    """Counts, sums and products of features, for the algorithms that ask for them after the last round."""
    return _look(content, settings, Site.moments)


def _look(content: RecordDict, settings: NodeSettings, see: Callable[[Site, Server], Vectors]) -> RecordDict:
    """What a site sees with the server's model."""
    terms, request, site = _order(content, settings)
    seen = see(site, _server(content, site, model_forms(site.setup)))
    sight = Sight(run=terms.run, round=request.round, samples=site.setup.sizes[0])
    return RecordDict({"report": to_text(sight.model_dump()), "seen": to_arrays(seen)})


def _order(content: RecordDict, settings: NodeSettings) -> tuple[Terms, Request, Site]:
    """Nothing is set up for an order that is none."""
    terms, request = Terms.read(from_text(content, "terms")), Request.read(from_text(content, "order"))
    return terms, request, Site(settings, terms)


def _server(content: RecordDict, site: Site, forms: Mapping[str, Form]) -> Server:
    device = site.setup.precision.device
    return unflatten({k: vector.to(device) for k, vector in from_arrays(content, "server", forms).items()})
