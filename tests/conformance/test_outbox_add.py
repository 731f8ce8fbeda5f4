"""Adding to the outbox from every kind of connection and session: one insert, on the caller's transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from caller_kinds import KINDS, Kind
from settled import connect, outbox
from settled.errors import ContractError, InvalidMessage, Refused, SettledError, TooLarge
from settled.outbox_row import BUCKETS, COLUMNS
from settled.record import Message
from settled.store import OutboxRow
from settled.testing.postgres import database

Urls = Callable[[str], str]
NAMES = sorted(KINDS)
EVERYTHING = Message(
    topic="orders",
    key=b"k\x00\xff",
    value=b'{"n":"a\\u0000b","s":"\\ud800"}',
    headers=(("h", None), ("h", b"\x00"), ("", b"")),
    id="e-é",
    type="OrderPlaced",
    version=-(2**63),
    event_time_us=1,
    correlation_id="c",
    causation_id="",
)


@pytest.fixture
def urls(tmp_path: Path) -> Iterator[Urls]:
    """A migrated database of a dialect. No store stays open: two copies of SQLite never share a file."""
    with ExitStack() as opened:

        def url(dialect: str) -> str:
            found = f"sqlite:///{tmp_path}/effects.db" if dialect == "sqlite" else opened.enter_context(database())
            with closing(connect.store(found)) as store:
                store.migrate()
            return found

        yield url


def within(kind: Kind, url: str, *works: Callable[[Any], Any], bare: bool = False) -> None:
    """One transaction in which each work is called with its handle, and awaited where there is something to await."""
    make = kind.bare if bare else kind.transaction
    if not kind.asynchronous:
        with make(url) as handle:
            for work in works:
                work(handle)
        return

    async def run() -> None:
        async with make(url) as handle:
            for work in works:
                waiting = work(handle)
                if waiting is not None:
                    await waiting

    asyncio.run(run())


def rows(url: str) -> list[OutboxRow]:
    with closing(connect.store(url)) as store:
        found = store.outbox.pending(dict.fromkeys(range(BUCKETS), 0), rows=1000, bytes=10_000_000)
        return sorted(found, key=lambda row: row.seq)


@pytest.mark.parametrize("name", NAMES)
def test_a_message_comes_back_byte_for_byte(name: str, urls: Urls) -> None:
    kind = KINDS[name]
    url = urls(kind.dialect)
    plain = Message(topic="orders", key=b"", id="e2")
    within(kind, url, lambda c: outbox.add(c, EVERYTHING), lambda c: outbox.add(c, plain))
    found = rows(url)
    assert [row.message for row in found] == [EVERYTHING, plain]
    with closing(connect.store(url)) as store:
        assert all(row.created_us > 1_600_000_000_000_000 for row in store.outbox.rows())


@pytest.mark.parametrize("name", NAMES)
def test_what_the_caller_rolls_back_is_not_there(name: str, urls: Urls) -> None:
    kind = KINDS[name]
    url = urls(kind.dialect)

    def fail(handle: Any) -> None:
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        within(kind, url, lambda c: outbox.publish(c, {"n": 1}, topic="orders", key="k"), fail)
    assert rows(url) == []


@pytest.mark.parametrize("name", NAMES)
def test_without_a_transaction_it_is_refused_with_a_remedy(name: str, urls: Urls) -> None:
    kind = KINDS[name]
    url = urls(kind.dialect)
    with pytest.raises(Refused) as refused:
        within(kind, url, lambda c: outbox.add(c, EVERYTHING), bare=True)
    assert refused.value.hint
    assert rows(url) == []


BAD: list[tuple[str, dict[str, Any], type[SettledError]]] = [
    ("id", {"id": "e\0"}, InvalidMessage),
    ("id", {"id": "e\ud800"}, InvalidMessage),
    ("id", {"id": ""}, InvalidMessage),
    ("header name", {"headers": (("h\0", b""),)}, InvalidMessage),
    ("topic", {"topic": "a b"}, InvalidMessage),
    ("version", {"version": 2**63}, InvalidMessage),
    ("type", {"type": "t\0"}, InvalidMessage),
    ("value", {"value": b"x" * 1_000_001}, TooLarge),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_bad_message_leaves_the_callers_transaction_as_it_was(name: str, urls: Urls) -> None:
    kind = KINDS[name]
    url = urls(kind.dialect)

    def bad(handle: Any) -> None:
        for field, change, error in BAD:
            with pytest.raises(error) as refused:
                outbox.publish(handle, **{"topic": "orders", "value": b"", **change})
            assert refused.value.field == field

    within(kind, url, lambda c: outbox.add(c, EVERYTHING), bad, lambda c: outbox.publish(c, topic="orders", id="e2"))
    assert [row.message.id for row in rows(url)] == ["e-é", "e2"]


def test_a_limit_can_be_stated(urls: Urls) -> None:
    url = urls("sqlite")
    with KINDS["apsw"].transaction(url) as connection:
        outbox.publish(connection, b"x" * 2_000_000, topic="orders", max_bytes=3_000_000)
        with pytest.raises(TooLarge):
            outbox.publish(connection, b"xxxx", topic="orders", max_bytes=3)
    assert len(rows(url)) == 1


def test_an_unknown_kind_is_named(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="Path is no connection"):
        outbox.add(tmp_path, EVERYTHING)


def test_in_psycopgs_pipeline_a_row_stands_and_falls_with_the_transaction(urls: Urls) -> None:
    url = urls("postgresql")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE mine (id text PRIMARY KEY)")
        for ident, taken in (("a", ()), ("b", ("a",))):  # the second breaks a constraint, and takes its row along
            try:
                with connection.pipeline(), connection.transaction():
                    for each in (ident, *taken):
                        connection.execute("INSERT INTO mine VALUES (%s)", (each,))
                    outbox.add(connection, Message(topic="t", id=ident, value=b"v"))
            except psycopg.errors.UniqueViolation:
                assert taken
        assert connection.execute("SELECT id FROM mine").fetchall() == [("a",)]
    assert [row.message.id for row in rows(url)] == ["a"]


def test_sqlalchemy_flushes_nothing(urls: Urls) -> None:
    import sqlalchemy
    from sqlalchemy.orm import DeclarativeBase, Session

    class Base(DeclarativeBase): ...

    class Order(Base):
        __tablename__ = "app_order"
        id = sqlalchemy.Column(sqlalchemy.String, primary_key=True)

    engine = sqlalchemy.create_engine(urls("postgresql").replace("postgresql:", "postgresql+psycopg:", 1))
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Order(id="o-1"))
        outbox.publish(session, topic="orders", key="o-1")
        assert len(session.new) == 1
    with Session(engine) as session:
        assert session.get(Order, "o-1") is not None
    engine.dispose()


# The columns, which Debezium's outbox event router (the first five) and other languages rely on.

THEIRS = ("id", "aggregatetype", "aggregateid", "type", "payload")
OURS = (
    *("record_key", "headers", "version", "event_time_us", "correlation_id", "causation_id"),
    *("created_us", "state", "attempts", "due_us", "error"),
)


def test_the_columns_are_those_that_debezium_reads_and_ours(urls: Urls) -> None:
    assert COLUMNS[:5] == THEIRS
    connection = apsw.Connection(urls("sqlite").removeprefix("sqlite:///"))
    kinds = {row[1]: row[2] for row in connection.execute("PRAGMA table_xinfo(settled_outbox)")}
    connection.close()
    assert set(kinds) == {"seq", "bucket", *THEIRS, *OURS}
    with psycopg.connect(urls("postgresql")) as server:
        kinds = dict(
            server.execute(
                "SELECT column_name, data_type FROM information_schema.columns"
                " WHERE table_schema = 'settled' AND table_name = 'outbox'"
            ).fetchall()
        )
    assert set(kinds) == {"seq", "bucket", *THEIRS, *OURS}
    assert [kinds[name] for name in THEIRS] == ["text", "text", "text", "text", "bytea"]


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_a_row_of_the_five_columns_alone_is_a_message(dialect: str, urls: Urls) -> None:
    url = urls(dialect)
    kind = KINDS["apsw" if dialect == "sqlite" else "psycopg"]
    table = "settled_outbox" if dialect == "sqlite" else "settled.outbox"
    values = "('e1', 'orders', 'k-é', 'OrderPlaced', '{}'), ('e2', 'orders', NULL, NULL, NULL)"
    insert = f"INSERT INTO {table} (id, aggregatetype, aggregateid, type, payload) VALUES {values}"
    within(kind, url, lambda c: c.execute(insert) and None)
    assert [row.message for row in rows(url)] == [
        Message(topic="orders", key="k-é".encode(), value=b"{}", id="e1", type="OrderPlaced"),
        Message(topic="orders", id="e2"),
    ]
