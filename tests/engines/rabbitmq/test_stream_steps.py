"""What is asked of a stream, against a broker that is late: a channel hears of what a consumer may be handed some time
after the consumer was accepted, and for certain when the stream's process answered for the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pika.spec import BasicProperties

from settled.engines.rabbitmq.records import STAMP_MS
from settled.engines.rabbitmq.stream_steps import Acknowledge, Came, Consume, Steps, bounds, entries, first_since

HELD = range(5, 25)  # the offsets of what the stream holds
US = 1_000_000


class Late:
    """Hands out in turns, as much as there is credit for; nothing to the newest consumer."""

    def __init__(self, came: Came) -> None:
        self._came = came
        self._next: dict[str, int] = {}
        self._credit: dict[str, int] = {}

    def take(self, steps: Steps[Any]) -> Any:
        while True:
            try:
                step = next(steps)
            except StopIteration as end:
                return end.value
            if isinstance(step, Consume):
                first = {"first": HELD.start, "last": HELD.stop - 1, "next": HELD.stop}
                self._next[step.name] = first.get(step.place, HELD.start)  # type: ignore[call-overload]
                self._credit[step.name] = step.ahead
            elif isinstance(step, Acknowledge):
                self._credit[step.name] += len(self._came.unacknowledged.pop(step.name, []))
            else:
                self._hand_out()

    def _hand_out(self) -> None:
        for name in list(self._next)[:-1]:
            while self._credit[name] and self._next[name] < HELD.stop:
                offset = self._next[name]
                properties = BasicProperties(headers={STAMP_MS: offset * 1000})
                self._came.add(name, offset, offset, properties, b"")
                self._next[name] += 1
                self._credit[name] -= 1


@pytest.mark.parametrize(
    ("asked", "given", "told"),
    [
        (lambda came, *given: entries(came, *given), ("first", 100), list(HELD)),
        (lambda came, *given: entries(came, *given), ("first", 3), [5, 6, 7]),
        (bounds, (), (HELD.start, HELD.stop)),
        (first_since, (9 * US,), 9),
    ],
)
def test_what_comes_late_is_waited_for(asked: Callable[..., Steps[Any]], given: tuple[Any, ...], told: Any) -> None:
    came = Came()
    found = Late(came).take(asked(came, *given))
    assert ([entry.offset for entry in found] if isinstance(found, list) else found) == told
