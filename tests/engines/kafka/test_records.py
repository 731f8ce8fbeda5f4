"""Records on their way to Kafka and back: nothing of them is lost, renamed or taken for settled's own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from settled.engines.kafka import marks
from settled.engines.kafka.marks import Mark
from settled.engines.kafka.records import headers_of, records_of
from settled.record import Message, Record

OWN = ["settled", "ce_id", "ce_type", "ce_time", "ce_settledversion", "ce_settledtimeus", "ce_source"]
INT64 = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)
header_names = st.sampled_from(OWN) | texts
headers = st.lists(st.tuples(header_names, st.none() | st.binary(max_size=20)), max_size=6).map(tuple)
messages = st.builds(
    Message,
    topic=st.just("orders"),
    id=texts.filter(bool),
    key=st.none() | st.binary(max_size=9),
    value=st.none() | st.binary(max_size=9),
    headers=headers,
    type=st.none() | texts,
    version=st.none() | INT64,
    event_time_us=st.none() | INT64,
    correlation_id=st.none() | texts,
    causation_id=st.none() | texts,
)


class Carried:
    """A message as the client hands it out: texts of headers have become bytes."""

    def __init__(
        self, found: list[tuple[str, Any]] | None, key: bytes | None = None, value: bytes | None = None
    ) -> None:
        self._headers = found and [(name, v.encode() if isinstance(v, str) else v) for name, v in found]
        self._key, self._value = key, value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self._headers

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def offset(self) -> int:
        return 42

    def timestamp(self) -> tuple[int, int]:
        return 2, 1_700_000_000_123


def carried(found: list[tuple[str, Any]] | None, **parts: Any) -> Record:
    records, sizes = records_of([Carried(found, **parts)], "orders", 3)
    assert sizes == [records[0].size]
    return records[0]


@given(messages)
def test_every_message_comes_back_as_it_was_sent(message: Message) -> None:
    found = carried(headers_of(message), key=message.key, value=message.value)
    for field in Message.__struct_fields__:
        assert getattr(found, field) == getattr(message, field), field
    assert (found.partition, found.offset, found.accepted_us) == (3, 42, 1_700_000_000_123_000)


@given(st.lists(st.tuples(header_names, st.none() | st.binary(max_size=300)), max_size=8))
def test_foreign_headers_are_all_kept_and_never_stop_the_reader(found: list[tuple[str, bytes | None]]) -> None:
    record = carried(found)
    assert record.id
    if not found or found[0][0] != "settled":
        assert record.headers == tuple(found)


@pytest.mark.parametrize("junk", [None, b"", b"\xff\xfe", b"a\0b", b"x" * 5000])
@pytest.mark.parametrize("rest", [[], [("ce_type", b"T"), ("ce_specversion", b"1.0"), ("ce_source", b"/orders")]])
def test_a_forged_block_with_an_id_that_no_store_could_keep(junk: bytes | None, rest: list[tuple[str, bytes]]) -> None:
    found = carried([("settled", str(len(rest) + 1).encode()), ("ce_id", junk), *rest])
    assert (found.id, found.type) == ("orders/3/42", "T" if rest else None)


def test_a_record_without_an_id_is_named_by_its_place() -> None:
    assert [carried(none).id for none in (None, [])] == ["orders/3/42"] * 2
    assert carried([("ce_id", b"")]).id == carried([("ce_id", b"\xff")]).id == "orders/3/42"
    assert carried([("ce_id", b"x" * 257)]).id == "orders/3/42"


def test_what_a_foreign_cloud_event_says_is_taken_over() -> None:
    event = [
        ("ce_specversion", b"1.0"),
        ("ce_type", b"com.example.placed"),
        ("ce_source", b"/shop"),
        ("ce_id", b"A-1"),
        ("ce_time", b"2024-03-01T12:00:00.5+01:00"),
        ("content-type", b"application/json"),
    ]
    found = carried(event)
    assert (found.id, found.type, found.event_time_us) == ("A-1", "com.example.placed", 1_709_290_800_500_000)
    assert found.headers == tuple(event)
    assert carried([*event[:4], ("ce_time", b"yesterday")]).event_time_us is None


def test_a_structured_cloud_event_is_left_as_it_is() -> None:
    kind = ("content-type", b"application/cloudevents+json; charset=UTF-8")
    found = carried([kind], value=b'{"id": "A-1"}')
    assert (found.id, found.headers, found.value) == ("orders/3/42", (kind,), b'{"id": "A-1"}')


def test_a_message_with_a_type_is_a_cloud_event() -> None:
    names = dict(headers_of(Message(topic="orders", id="e1", type="placed", version=7)))
    assert names["ce_specversion"] == b"1.0"
    assert (names["ce_id"], names["ce_type"], names["ce_source"]) == ("e1", "placed", "/orders")
    assert names["ce_settledversion"] == "7"


@given(st.builds(Mark, st.integers(0, 2**62), st.booleans(), st.none() | st.integers(0, 10_000)))
def test_a_note_beside_a_commit_is_read_as_it_was_written(mark: Mark) -> None:
    assert marks.read(mark.text()) == mark
    assert len(mark.text()) < 100


@pytest.mark.parametrize(
    "text", [None, "", "epoch", "epoch=-1", "epoch=²", "clean=;epoch=x", "something else", "=" * 99]
)
def test_the_note_of_another_program_says_nothing(text: str | None) -> None:
    assert marks.read(text) == Mark()
