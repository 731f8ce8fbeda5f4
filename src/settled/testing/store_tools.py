"""What the store suites share: short ways to make records, to run a unit of work, and to read effects back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

from settled.outcome import Attempts, Ending, Failure, FailureClass, Outcome
from settled.record import Headers, Record
from settled.store import ConsumerSpec, Position, Progress, Session, Store, Tx

GROUP = "inventory"
TOPIC = "orders"
IDENTITY = "incarnation-1"
StoreFactory = Callable[[], Store]


def record(offset: int, event_id: str | None = None, *, key: bytes | None = b"k", **fields: Any) -> Record:
    fields = {"topic": TOPIC, "partition": 0, "value": b"v", "headers": (), **fields}
    return Record(offset=offset, key=key, id=event_id or f"e{offset}", **fields)


def records(*offsets: int) -> list[Record]:
    return [record(offset, key=b"k%d" % offset) for offset in offsets]


def at(frontier: int, *, epoch: int = 1, topic: str = TOPIC, partition: int = 0, **fields: Any) -> Progress:
    return Progress(topic=topic, partition=partition, epoch=epoch, frontier=frontier, **fields)


def applied(found: Iterable[Record]) -> list[Ending]:
    return [Ending(each, Outcome.APPLIED) for each in found]


def failure(text: str = "no such item", **fields: Any) -> Failure:
    fields = {"kind": FailureClass.DEFECT, "error": "app.Broken", "trace": "in reserve", "fingerprint": "f1", **fields}
    return Failure(message=text, **fields)


def tried(count: int = 1, *, first_us: int = 1000, last: Failure | None = None, **fields: Any) -> Attempts:
    last = last or failure()
    return Attempts(count=count, first_us=first_us, due_us=2000, last=last, first=fields.pop("first", last), **fields)


def quarantined(found: Record, attempts: Attempts | None = None, why: Failure | None = None, **more: Any) -> Ending:
    return Ending(found, Outcome.QUARANTINED, why or failure(), attempts or tried(5), **more)


class StoreCases:
    """The fixtures of the store suites. `store_factory` is the subclass's: each call opens the same new database."""

    placeholder = "?"  # of the store's own SQL, in the statements of the suite

    @pytest.fixture
    def store_factory(self) -> StoreFactory:
        raise NotImplementedError("supply the fixture `store_factory`")

    @pytest.fixture
    def store(self, store_factory: StoreFactory) -> Store:
        """A store with settled's tables and a table of effects, in which a double effect shows as a second row."""
        store = store_factory()
        store.migrate()
        store.prepare(lambda tx: tx.execute("CREATE TABLE effects (id VARCHAR(300), note VARCHAR(300))"))
        return store

    @pytest.fixture
    def session(self, store: Store) -> Iterator[Session]:
        """A session of GROUP, which holds TOPIC/0 under epoch 1 and stands at 0."""
        self.own(store)
        session = store.session(ConsumerSpec(consumer=GROUP, owner="stock team", code_version="7f3"))
        yield session
        session.close()

    def own(self, store: Store, consumer: str = GROUP, topic: str = TOPIC, *, epoch: int = 1) -> None:
        if store.acquire(consumer, topic, 0, epoch, IDENTITY) is None:
            start = Position(topic=topic, partition=0, epoch=epoch, frontier=0, identity=IDENTITY)
            store.settle_from(consumer, start)

    def write(self, tx: Tx, event_id: str, note: str = "") -> None:
        mark = self.placeholder
        tx.execute(f"INSERT INTO effects (id, note) VALUES ({mark}, {mark})", (event_id, note))

    def effects(self, store: Store) -> list[str]:
        found: list[str] = []
        store.prepare(
            lambda tx: found.extend(row[0] for row in tx.execute("SELECT id FROM effects ORDER BY id").fetchall())
        )
        return found

    def unit(self, session: Session, found: Sequence[Record], frontier: int, *, epoch: int = 1) -> list[Outcome | None]:
        """The whole of a unit: screen, an effect for each record that is new, settle."""
        session.begin([at(frontier, epoch=epoch)])
        judged = session.screen(found)
        for each, outcome in zip(found, judged, strict=True):
            if outcome is None:
                self.write(session.tx, each.id)
        endings = [Ending(each, outcome or Outcome.APPLIED) for each, outcome in zip(found, judged, strict=True)]
        session.settle(endings, [at(frontier, epoch=epoch)])
        return judged

    def shelve(self, session: Session, *found: Record, **more: Any) -> None:
        """Quarantine these."""
        session.begin([at(0)])
        session.settle([quarantined(each, **more) for each in found], [at(max(each.offset for each in found) + 1)])


HEADERS: Headers = (("a", b"\x00\xff"), ("a", None), ("", b""), ("naïve ☃", "é".encode()))
