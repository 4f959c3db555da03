"""Sites and a server in one process: messages go through Flower's own types, but over no network."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from vhl.flower.client_app import app as client_app

Answer = Callable[[Message, Context], Message]


class LocalGrid(Grid):
    """Nodes are calls; a test may take one away, or put its own answer in place of the app's."""

    def __init__(self, configurations: Iterable[dict[str, Any]], app: ClientApp = client_app) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # as in a process of Flower's
        self.contexts = {
            1000 + number: Context(
                run_id=1, node_id=1000 + number, node_config=config, state=RecordDict(), run_config={}
            )
            for number, config in enumerate(configurations)
        }
        self.present = set(self.contexts)
        self.answers: dict[int, Answer] = dict.fromkeys(self.contexts, app)
        self.sent: list[Message] = []
        self._replies: dict[str, Message] = {}
        self._numbers = itertools.count()

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return sorted(self.present)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        numbers = []
        for message in messages:
            number = f"message-{next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = number
            self.sent.append(message)
            node = message.metadata.dst_node_id
            if node not in self.present:
                self._replies[number] = Message(Error(5, "node unavailable"), reply_to=message)
            else:
                self._replies[number] = self.answers[node](message, self.contexts[node])
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(number) for number in message_ids if number in self._replies]
