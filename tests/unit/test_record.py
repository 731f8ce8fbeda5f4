"""Messages and records: what is kept as it came, and what is refused before anything is stored."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from settled.errors import InvalidMessage
from settled.record import (
    MAX_ID_BYTES,
    Message,
    Record,
    checked,
    checked_name,
    checked_text,
    from_us,
    new_id,
    to_us,
)


def message(**fields: object) -> Message:
    return Message(**{"topic": "t", "id": "e1", **fields})  # type: ignore[arg-type]


def test_ids_are_version_7_and_rise_with_time() -> None:
    made = [new_id() for _ in range(1000)]
    assert len(set(made)) == 1000
    for each in made:
        found = uuid.UUID(each)
        assert (found.version, found.variant) == (7, uuid.RFC_4122)
    times = [uuid.UUID(each).int >> 80 for each in made]
    assert times == sorted(times)
    assert abs(times[-1] - datetime.now(UTC).timestamp() * 1000) < 60_000


@given(st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.just(UTC)))
def test_times_survive_to_the_microsecond(moment: datetime) -> None:
    assert from_us(to_us(moment)) == moment


def test_other_zones_are_the_same_instant() -> None:
    there = datetime(2020, 1, 1, 12, tzinfo=timezone(timedelta(hours=5, minutes=45)))
    assert from_us(to_us(there)) == there


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="no zone"):
        to_us(datetime(2020, 1, 1))


@pytest.mark.parametrize("name", ["t", "a.b-c_d", "A" * 200, "..."])
def test_names_that_are_allowed(name: str) -> None:
    assert checked_name("topic", name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "é", "t\n", "A" * 201, "\0"])
def test_names_that_are_not(name: str) -> None:
    with pytest.raises(InvalidMessage) as caught:
        checked_name("topic", name)
    assert caught.value.hint


@given(st.text(max_size=400))
def test_an_id_is_refused_exactly_when_a_store_could_not_keep_it(text: str) -> None:
    try:
        raw = text.encode()
        fits = 0 < len(raw) <= MAX_ID_BYTES and b"\0" not in raw
    except UnicodeEncodeError:
        fits = False
    if fits:
        assert checked(message(id=text)).id == text
    else:
        with pytest.raises(InvalidMessage):
            checked(message(id=text))


@pytest.mark.parametrize("text", ["\ud800", "a\0b", "é" * 129, "\N{GRINNING FACE}" * 65])
def test_text_that_a_store_cannot_keep(text: str) -> None:
    with pytest.raises(InvalidMessage):
        checked_text("id", text)


def test_ids_are_not_normalised() -> None:
    composed, decomposed = "\N{LATIN SMALL LETTER E WITH ACUTE}", "e\N{COMBINING ACUTE ACCENT}"
    assert checked(message(id=composed)).id != checked(message(id=decomposed)).id


def test_empty_and_none_stay_different() -> None:
    found = checked(message(key=b"", value=None, type="", headers=(("", None), ("", b""), ("a", b"1"), ("a", b"2"))))
    assert (found.key, found.value, found.type) == (b"", None, "")
    assert found.headers == (("", None), ("", b""), ("a", b"1"), ("a", b"2"))


@pytest.mark.parametrize(
    "fields",
    [
        {"key": "text"},
        {"value": bytearray(b"x")},
        {"headers": (("a", "text"),)},
        {"headers": (("a\0", b""),)},
        {"headers": (("h" * 1025, b""),)},
        {"version": 2**63},
        {"correlation_id": "c\0"},
        {"id": ""},
        {"topic": "a b"},
    ],
)
def test_what_no_engine_could_keep_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidMessage) as caught:
        checked(message(**fields))
    assert caught.value.field


def made(**fields: object) -> Record:
    return Record(
        **{"topic": "t", "partition": 0, "offset": 0, "key": None, "value": None, "headers": (), "id": "e", **fields}  # type: ignore[arg-type]
    )


def test_the_last_header_of_a_name_counts() -> None:
    found = made(headers=(("a", b"1"), ("a", None), ("b", b"2")))
    assert found.header("a") is None
    assert found.header("b") == b"2"
    assert found.header("c") is None


def test_size_grows_with_all_that_is_held() -> None:
    plain = made()
    assert made(value=b"x" * 1000).size == plain.size + 1000
    assert made(key=b"x" * 10).size == plain.size + 10
    assert made(headers=(("n" * 5, b"v" * 20),)).size >= plain.size + 25


def test_times_as_datetimes() -> None:
    found = made(accepted_us=1_000_000, event_time_us=None)
    assert found.accepted_at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert found.event_time is None
