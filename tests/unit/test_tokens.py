"""Position tokens: what is put in comes out, and nothing else is taken for one."""

from __future__ import annotations

import base64
import string
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from settled.engine import Receipt
from settled.errors import ContractError, InvalidMessage
from settled.tokens import Token, read_token, token_of, token_of_event

TOPICS = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=200).filter(
    lambda name: name not in (".", "..")
)
IDS = st.one_of(
    st.uuids().map(str),
    st.uuids().map(lambda found: str(found).upper()),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=64),
)
PLACES = st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))


@given(TOPICS, IDS, PLACES, st.text(max_size=50))
def test_what_is_put_in_comes_out(topic: str, event_id: str, place: tuple[int, int], identity: str) -> None:
    text = token_of(Receipt(topic, *place, event_id), identity)
    assert set(text) <= set(string.ascii_letters + string.digits + "-_")
    found = read_token(text)
    assert (found.topic, found.partition, found.offset, found.event_id) == (topic, *place, event_id)
    assert found.encode() == text
    assert read_token(token_of(Receipt(topic, *place, event_id), identity + "x")).identity != found.identity


@given(TOPICS, IDS)
def test_a_message_without_a_place_has_a_token_too(topic: str, event_id: str) -> None:
    found = read_token(token_of_event(topic, event_id))
    assert found == Token(topic=topic, event_id=event_id)


def test_a_receipt_without_a_place_gives_the_token_of_its_event() -> None:
    """As of a repeat that the engine recognised."""
    assert token_of(Receipt("orders", 3, -1, "e-1", stored=False), "one") == token_of_event("orders", "e-1")


def test_a_usual_token_is_small() -> None:
    receipt = Receipt("comments", 3, 1_000_000, str(uuid.UUID(int=2**127 + 5)))
    assert len(token_of(receipt, "0f3c")) <= 60


@given(st.data())
def test_a_changed_token_is_refused(data: st.DataObject) -> None:
    text = token_of(Receipt("comments", 3, 41, "event-1"), "i")
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from(string.ascii_letters + string.digits + "-_").filter(lambda c: c != text[place]))
    with pytest.raises(ContractError, match="no token"):
        read_token(text[:place] + other + text[place + 1 :])


@given(st.text(max_size=80))
def test_any_text_is_refused(text: str) -> None:
    with pytest.raises(ContractError, match="no token"):
        read_token(text)


@given(st.binary(max_size=80))
def test_what_only_looks_like_one_is_refused(raw: bytes) -> None:
    from settled.token_form import checksum

    for made in (raw, raw + checksum(raw)):
        text = base64.urlsafe_b64encode(made).rstrip(b"=").decode()
        try:
            found = read_token(text)
        except ContractError:
            continue
        assert found.encode() == text


@pytest.mark.parametrize("value", [None, 7, b"AQ", ["x"], "", "=", "AQ==", " ", "é", "x" * 100_000])
def test_what_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(ContractError) as refused:
        read_token(value)  # type: ignore[arg-type]
    assert refused.value.field == "token"
    assert refused.value.hint


def test_cut_or_lengthened_tokens_are_refused() -> None:
    text = token_of(Receipt("comments", 3, 41, "event-1"), "i")
    for changed in (text[:-1], text[1:], text + "A", text + "=", text + " ", " " + text, text + "\n"):
        with pytest.raises(ContractError):
            read_token(changed)


def test_ids_that_nobody_can_store_get_no_token() -> None:
    for topic, event_id in (("a/b", "e"), ("t", "e\0"), ("t", "")):
        with pytest.raises(InvalidMessage):
            token_of_event(topic, event_id)
