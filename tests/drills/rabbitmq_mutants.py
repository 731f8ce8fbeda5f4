"""Seeded mutants of the RabbitMQ engine, one broken promise each; a fork server with one of them in it:
`python rabbitmq_mutants.py NAME`. The product knows nothing of them.
"""

import sys
from collections.abc import Callable
from typing import Any

from settled.delivery import lanes
from settled.drills.worker import serve
from settled.engine import Fetched
from settled.engines.rabbitmq.consumer import RabbitConsumer
from settled.stores.sqlite import session


def acknowledges_what_it_hands_over() -> None:
    """As automatic acknowledgement does: before the store commits."""
    poll = RabbitConsumer.poll

    def early(self: RabbitConsumer, timeout: float, **bounds: int) -> list[Any]:
        found = poll(self, timeout, **bounds)
        self.commit({(each.topic, each.partition): each.next_offset for each in found if isinstance(each, Fetched)})
        return found

    RabbitConsumer.poll = early  # type: ignore[assignment]


def what_is_settled_is_never_acknowledged() -> None:
    RabbitConsumer.commit = lambda self, frontiers: None  # type: ignore[method-assign]


def inbox_is_not_asked() -> None:
    session.SqliteSession.screen = lambda self, records: [None] * len(records)  # type: ignore[method-assign]
    session._MARK = session._MARK.replace("OR IGNORE", "OR REPLACE")
    session._MARK_RUN = session._MARK_RUN.replace("OR IGNORE", "OR REPLACE")


def groups_run_in_reverse() -> None:
    take = lanes.Lanes.take
    lanes.Lanes.take = lambda self, most: take(self, most)[::-1]  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    function.__name__: function
    for function in (
        acknowledges_what_it_hands_over,
        what_is_settled_is_never_acknowledged,
        inbox_is_not_asked,
        groups_run_in_reverse,
    )
}

if __name__ == "__main__":
    MUTANTS[sys.argv[1]]()
    serve()
