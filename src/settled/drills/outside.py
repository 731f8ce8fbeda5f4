"""Drills of what leaves the effect's transaction: rows that relays publish, and calls to others."""

from __future__ import annotations

import random
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from settled.drills import history
from settled.drills.database import schema_of, without_own_options
from settled.drills.order import Death
from settled.drills.rounds import PER_DEATH_S, Round
from settled.drills.world import World
from settled.outbox.adding import add
from settled.record import Message

RELAY_WINDOWS = ("relay-read", "relay-sent", "relay-marked")
LOG_WINDOWS = ("batch-closed", "append-written", "append-committed")  # of the embedded log, within a relay
CALL_WINDOWS = ("intent-recorded", "call-made", "result-recorded", "marks-written")  # the last: its answer was used


def relay(world: World, times: int, chance: random.Random) -> tuple[int, str]:
    """Relays die in each of their windows, alone and beside another, while applications commit out of order."""
    windows = RELAY_WINDOWS + (LOG_WINDOWS if world.engine_url.startswith("sqlite:") else ())
    worker = world.start()
    applications = Applications(world)
    deadline = time.monotonic() + 20.0 + PER_DEATH_S * times
    deaths = turn = 0
    while deaths < times and time.monotonic() < deadline and worker.alive:
        applications.put(world.supply.take(20))
        beside = [world.start("relay")] if chance.random() < 0.5 else []
        death = Death(window=windows[turn % len(windows)], nth=chance.randint(1, 2))
        dying = world.start("relay", death=death, drained=True)
        if not world.crew.wait_ended(dying, PER_DEATH_S + world.settle_s):
            world.stop([dying])
        deaths += dying.killed
        turn += 1
        world.stop(beside)
        world.snapshot()
    applications.end()
    world.empty_outbox()
    world.stop([worker])
    Round(world, "random", 0, chance).settle()
    world.snapshot()
    return deaths, f"{turn} relays, {len(windows)} windows, {applications.held} rows committed after later ones"


def external_call(world: World, times: int, chance: random.Random) -> tuple[int, str]:
    """Workers die before, after and while a call outside is made; its receiver counts calls, keys and answers."""
    deaths = 0
    for window in CALL_WINDOWS:
        found = Round(world, window, -(-times // len(CALL_WINDOWS)), chance)
        found.run()
        deaths += found.deaths
    calls = Counter(event.id for event in history.read(world.folder) if event.what == "call")
    again = sum(count - 1 for count in calls.values())
    return deaths, f"{sum(calls.values())} calls for {len(calls)} records, {again} of them made again"


class Applications:
    """Two of them write to the outbox. On PostgreSQL the one that adds its rows first commits last, after relays have
    seen the other's higher numbers; each key belongs to one of them, so its order is known. SQLite has one writer at a
    time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._late: list[Message] = []
        self._connection: Any = None
        self.held = 0

    def put(self, messages: Sequence[Message]) -> None:
        """All are added; half of the keys are committed now, the others at the next call or at the end."""
        self.end()
        late: list[Message] = []
        if not self._world.store_url.startswith("sqlite:"):
            late = [message for message in messages if zlib.crc32(message.key or b"") % 2]
            self._hold(late)
        self._world.put_in_outbox([message for message in messages if message not in late])

    def _hold(self, messages: list[Message]) -> None:
        import psycopg

        self._connection = psycopg.connect(without_own_options(self._world.store_url))
        self._late = messages
        for message in messages:
            self._world.tell_outboxed("invoke", message)
            add(self._connection, message, schema=schema_of(self._world.store_url))

    def end(self) -> None:
        """Commit what is held."""
        if self._connection is not None:
            self._connection.commit()
            self._connection.close()
            self._connection = None
        for message in self._late:
            self._world.tell_outboxed("ok", message)
        self.held += len(self._late)
        self._late = []
