"""Leases that the broker cannot keep: its heartbeats are a second apart at least."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from settled.engine import Engine
from settled.engines.rabbitmq import RabbitEngine
from settled.testing import rabbitmq
from settled.testing.engine_tools import message, names, publish
from settled.testing.queue_tools import QueueMember, make_queue

pytestmark = pytest.mark.xdist_group("rabbitmq")


@pytest.fixture
def engine() -> Iterator[RabbitEngine]:
    names.fresh()
    opened = RabbitEngine(rabbitmq.url())
    yield opened
    opened.close()
    names.plain()


@pytest.mark.parametrize("lease_s", [0.001, 0.3])
def test_a_member_with_a_short_lease_gets_its_records(engine: Engine, lease_s: float) -> None:
    make_queue(engine, 1)
    member = QueueMember(engine, lease_s=lease_s)
    member.owns(1)
    publish(engine, [message(0)])
    member.until(lambda: member.ids == ["e0"], "it has the record")
    member.leave(settled=True)
