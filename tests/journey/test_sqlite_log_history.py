"""The embedded log refuses to go on when it went back in time, and never gives an offset twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw
import pytest

from settled import clock
from settled.engine import ProducerSpec
from settled.engines.sqlite import SqliteEngine, accept_loss
from settled.engines.sqlite.tip import tip_path
from settled.errors import ContractError, HistoryLost, Refused
from settled.sqlite import open_connection
from settled.testing.engine_tools import TOPIC, Member, make_topic, message, publish


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


def opened(path: Path) -> SqliteEngine:
    return SqliteEngine(f"sqlite:///{path}")


def backup(path: Path, target: Path) -> None:
    """A good copy, made the proper way."""
    source, copy = open_connection(path), apsw.Connection(str(target))
    with copy.backup("main", source, "main") as running:
        running.step()
    copy.close()
    source.close()


def lose(path: Path, count: int, kept: int) -> None:
    """Publish `kept` records, make a copy, publish up to `count`, close, and put the copy back."""
    engine = opened(path)
    make_topic(engine, 1)
    publish(engine, map(message, range(kept)))
    backup(path, path.with_name("copy"))
    publish(engine, map(message, range(kept, count)))
    engine.close()
    shutil.copy(path.with_name("copy"), path)


def contents(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in path.parent.iterdir() if one.is_file()}


def test_an_older_copy_is_refused_and_left_alone(path: Path) -> None:
    lose(path, 20, 10)
    before = contents(path)
    with pytest.raises(HistoryLost, match="went back in time") as refused:
        opened(path)
    assert "accept_loss" in refused.value.hint
    assert refused.value.exit_code == 3
    assert contents(path) == before


def test_a_deleted_wal_is_refused(path: Path) -> None:
    engine = opened(path)
    make_topic(engine, 1)
    publish(engine, map(message, range(10)))
    stale = {name: data for name, data in contents(path).items() if not name.endswith(("-wal", "-shm"))}
    engine.close()
    for name, data in stale.items():  # the files as a crash left them, without the WAL
        (path.parent / name).write_bytes(data)
    with pytest.raises(HistoryLost):
        opened(path)


def test_a_log_that_is_gone_is_not_made_anew(path: Path) -> None:
    opened(path).close()
    path.unlink()
    with pytest.raises(HistoryLost, match="gone"):
        opened(path)
    assert not path.exists()
    path.touch()
    with pytest.raises(HistoryLost, match="holds no log"):
        opened(path)


def test_another_log_is_refused(path: Path, tmp_path: Path) -> None:
    opened(path).close()
    other = tmp_path / "other.db"
    opened(other).close()
    shutil.copy(other, path)
    with pytest.raises(HistoryLost, match="another log"):
        opened(path)


@pytest.mark.parametrize("spoil", [lambda tip: tip.unlink(), lambda tip: tip.write_bytes(b"x" * 64)])
def test_a_missing_or_spoiled_tip_is_made_anew(path: Path, spoil: object) -> None:
    assert callable(spoil)
    engine = opened(path)
    make_topic(engine, 1)
    publish(engine, map(message, range(5)))
    engine.close()
    spoil(tip_path(path))
    engine = opened(path)
    assert len(engine.read(TOPIC, 0, 0)) == 5
    engine.close()
    lose_again = tip_path(path).read_bytes()
    assert len(lose_again) == 64
    assert lose_again != b"x" * 64


def test_accepting_a_loss_uses_no_offset_twice(path: Path) -> None:
    lose(path, 20, 10)
    done = accept_loss(f"sqlite:///{path}", "restored Monday's copy")
    loss = done.losses[0]
    assert (done.generation, loss.topic, loss.partition, loss.first) == (1, TOPIC, 0, 10)
    assert loss.next > 20
    engine = opened(path)
    receipt = publish(engine, [message(100)])[0]
    assert receipt.offset == loss.next
    assert [found.id for found in engine.read(TOPIC, 0, 0)] == [f"e{n}" for n in range(10)] + ["e100"]
    for start in (0, 10, 15, 20):  # frontiers from before the loss, also in what was lost
        member = Member(engine, group=f"from-{start}", start=start)
        assert member.receives(max(0, 10 - start) + 1)[-1].id == "e100"
        assert [one.gap_from for one in member.fetched if one.gap_from is not None] == [max(start, 10)]
        assert member.stopped == []
        member.consumer.close()
    engine.close()
    opened(path).close()


def test_accepting_a_loss_needs_a_reason_and_knows_of_stores_ahead(path: Path) -> None:
    engine = opened(path)
    make_topic(engine, 2)
    engine.close()
    with pytest.raises(ContractError, match="reason"):
        accept_loss(f"sqlite:///{path}", "  ")
    done = accept_loss(f"sqlite:///{path}", "log and tip are both old", above=5_000_000)
    assert all(loss.next > 5_000_000 for loss in done.losses)
    assert [loss.partition for loss in done.losses] == [0, 1]


def test_a_witness_holds_through_an_accepted_loss(path: Path) -> None:
    lose(path, 20, 10)
    accept_loss(f"sqlite:///{path}", "drill")
    engine = opened(path)
    publish(engine, [message(100)])
    member = Member(engine)
    member.receives(11)
    for one in member.fetched:
        member.consumer.start(TOPIC, 0, one.next_offset, witness=(one.next_offset, one.witness))
    member.consumer.start(TOPIC, 0, 15, witness=(15, b"w" * 16))  # lost with its past: accepted
    with pytest.raises(HistoryLost):
        member.consumer.start(TOPIC, 0, 15, witness=(5, b"w" * 16))
    engine.close()


def test_a_file_replaced_while_open_stops_everything(path: Path, tmp_path: Path) -> None:
    engine = opened(path)
    make_topic(engine, 1)
    publish(engine, map(message, range(5)))
    member = Member(engine, lease_s=0.3)
    member.receives(5)
    copy = tmp_path / "copy"
    backup(path, copy)
    copy.replace(path)
    producer = engine.producer(ProducerSpec())
    pending = producer.send(message(6))
    with pytest.raises(HistoryLost, match="replaced"):
        producer.flush()
    with pytest.raises(HistoryLost):
        pending.result()
    member.until(lambda: bool(member.stopped), "told by the heartbeat")
    assert isinstance(member.stopped[0].error, HistoryLost)
    engine.close()


def test_memory_appends_never_trip_the_tip_and_never_repeat_an_offset(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut is played: the files as they were after the last synced commit, and another boot."""
    engine = opened(path)
    make_topic(engine, 1)
    publish(engine, map(message, range(3)))
    producer = engine.producer(ProducerSpec(durability="memory"))
    producer.send(message(3)).result(timeout=30)  # reserves offsets by a synced commit
    backup(path, path.with_name("copy"))
    tip = tip_path(path).read_bytes()
    seen = [producer.send(message(n)).result(timeout=30).offset for n in range(4, 9)]
    assert seen == [4, 5, 6, 7, 8]
    assert tip_path(path).read_bytes() == tip  # not synced, so not remembered
    engine.close()
    shutil.copy(path.with_name("copy"), path)
    tip_path(path).write_bytes(tip)
    monkeypatch.setattr(clock, "boot_id", lambda: "another-boot")
    engine = opened(path)
    again = publish(engine, [message(9)])[0].offset
    assert again > max(seen)
    member = Member(engine, start=9)  # a store's frontier in what the power cut took
    assert [one.id for one in member.receives(1)] == ["e9"]
    assert member.fetched[0].gap_from == 9
    engine.close()
    engine = opened(path)
    assert publish(engine, [message(10)])[0].offset == again + 1
    engine.close()


def test_memory_appends_of_a_closed_producer_leave_no_gap(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = opened(path)
    make_topic(engine, 1)
    publish(engine, map(message, range(25_000)), durability="memory")
    engine.close()
    monkeypatch.setattr(clock, "boot_id", lambda: "another-boot")
    engine = opened(path)
    assert publish(engine, [message(1)])[0].offset == 25_000
    engine.close()


def test_a_newer_schema_is_refused(path: Path) -> None:
    opened(path).close()
    connection = open_connection(path)
    connection.execute("UPDATE log_meta SET version = 99")
    connection.close()
    with pytest.raises(Refused, match="version 99"):
        opened(path)
