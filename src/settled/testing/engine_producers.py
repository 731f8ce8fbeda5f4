"""What an engine must show of producers: batches close in time, nothing is stored twice, nothing is dropped unseen."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from settled.engine import Durability, Engine
from settled.errors import ContractError, Fenced, InvalidMessage, SettledError, Unsupported
from settled.record import Message
from settled.testing.engine_tools import (
    DEADLINE_S,
    EngineFactory,
    eventually,
    make_topic,
    message,
    names,
    producing,
    publish,
    topic_of,
)

NEVER_S = 3600.0
ALL: tuple[Durability, ...] = ("memory", "local", "committed")

_FORGETFUL = """
import importlib, sys
from settled.engine import ProducerSpec
from settled.record import Message
module, name, url, topic, durability = sys.argv[1:]
spec = ProducerSpec(linger_s=3600.0, durability=durability)
producer = getattr(importlib.import_module(module), name)(url).producer(spec)
for number in range(1000):
    producer.send(Message(topic=topic, id=f"e{number}", value=b"v"))
"""


class ProducerCases:
    batches = True  # producers hold messages back until a batch closes; else each goes at once

    def test_nothing_is_held_back_where_there_are_no_batches(self, engine: Engine) -> None:
        if self.batches:
            pytest.skip("producers hold messages back here")
        make_topic(engine)
        producer = engine.producer(producing(linger_s=NEVER_S))
        assert producer.send(message(1)).result(timeout=DEADLINE_S).offset == names.offset(0)
        producer.close()

    @pytest.fixture
    def batching(self, engine: Engine) -> Engine:
        """The engine, where producers hold messages back."""
        if not self.batches:
            pytest.skip("there are no batches here")
        return engine

    def test_a_batch_closes_by_count(self, batching: Engine) -> None:
        make_topic(batching)
        producer = batching.producer(producing(batch_records=10, linger_s=NEVER_S))
        pending = [producer.send(message(n)) for n in range(11)]
        assert pending[9].result(timeout=DEADLINE_S).offset == 9
        assert not pending[10].done()
        with pytest.raises(TimeoutError):
            pending[10].result(timeout=0.01)
        producer.close()
        assert pending[10].result().offset == 10

    def test_a_batch_closes_by_bytes(self, batching: Engine) -> None:
        make_topic(batching)
        producer = batching.producer(producing(batch_bytes=10_000, linger_s=NEVER_S))
        pending = [producer.send(message(n, value=b"x" * 4000)) for n in range(3)]
        assert pending[1].result(timeout=DEADLINE_S).offset == 1
        assert not pending[2].done()
        producer.close()

    def test_a_batch_closes_by_time(self, batching: Engine) -> None:
        make_topic(batching)
        producer = batching.producer(producing(linger_s=0.05))
        for number in range(2):  # a second time: the producer's thread went back to rest in between
            pending = producer.send(message(number))
            assert not pending.done()
            assert pending.result(timeout=DEADLINE_S).offset == number
        producer.close()

    def test_flush_waits_for_all(self, engine: Engine) -> None:
        make_topic(engine, 2)
        producer = engine.producer(producing(linger_s=NEVER_S))
        for timeout in (None, DEADLINE_S):
            pending = [producer.send(message(n)) for n in range(50)]
            producer.flush(timeout)
            assert all(one.done() for one in pending)
        producer.flush()
        producer.close()
        producer.close()
        with pytest.raises(SettledError):
            producer.send(message(1))

    def test_keys_stay_where_they_are(self, engine: Engine, engine_factory: EngineFactory) -> None:
        make_topic(engine, 4)
        keys = [b"", b"a", b"\x00", b"z" * 4096, "köln".encode()]
        places: dict[bytes, set[int]] = {key: set() for key in keys}
        for one in (engine, engine_factory()):
            for key in keys:
                places[key] |= {r.partition for r in publish(one, [message(n, key=key) for n in range(20)])}
        assert {key: len(found) for key, found in places.items()} == dict.fromkeys(keys, 1)
        spread = {r.partition for r in publish(engine, [message(n, key=None) for n in range(100)])}
        assert spread == {0, 1, 2, 3}

    @pytest.mark.parametrize("durability", ALL)
    def test_durability_is_kept_or_refused(self, engine: Engine, durability: Durability) -> None:
        make_topic(engine)
        if durability in engine.capabilities.of("log").durability:
            assert publish(engine, [message(1)], durability=durability)[0].offset == names.offset(0)
            eventually(lambda: [one.id for one in engine.read(names.topic, 0, 0)] == ["e1"], "it can be read")
        else:
            with pytest.raises(Unsupported) as refused:
                self._send(engine, durability)
            assert refused.value.hint

    def _send(self, engine: Engine, durability: Durability) -> None:
        """Where topics of several forms are published to, a form refuses when the first message goes to it."""
        producer = engine.producer(producing(durability=durability))
        try:
            producer.send(message(1))
        finally:
            producer.close()

    @pytest.mark.parametrize("compression", ["none", "zstd"])
    def test_compression_changes_nothing_but_the_size(self, engine: Engine, compression: str) -> None:
        make_topic(engine)
        sent = [message(n, value=b"same " * 200) for n in range(50)]
        publish(engine, sent, compression=compression)
        assert [found.value for found in engine.read(names.topic, 0, 0)] == [one.value for one in sent]
        part = topic_of(engine).partitions[0]
        if part.bytes is not None and part.stored_bytes is not None:
            assert part.bytes == sum(found.size for found in engine.read(names.topic, 0, 0))
            assert (part.stored_bytes < part.bytes / 4) == (compression == "zstd")

    def test_a_named_producer_resumes(self, engine: Engine, engine_factory: EngineFactory) -> None:
        make_topic(engine, 2)
        if not engine.capabilities.of("log").producer_resume:
            with pytest.raises(Unsupported):
                engine.producer(producing(identity="loader")).resume_point()
            return
        first = engine.producer(producing(identity="loader", batch_records=4))
        assert first.resume_point() is None
        for number in range(10):
            first.send(message(number), sequence=number)
        first.close()
        second = engine_factory().producer(producing(identity="loader"))
        assert second.resume_point() == 9
        pending = [second.send(message(number), sequence=number) for number in range(5, 15)]
        second.flush()
        assert [one.result().stored for one in pending] == [False] * 5 + [True] * 5
        assert second.resume_point() == 14
        second.close()
        ids = [found.id for number in range(2) for found in engine.read(names.topic, number, 0)]
        assert sorted(ids) == sorted(f"e{number}" for number in range(15))

    def test_sequences_rise_and_need_a_name(self, engine: Engine) -> None:
        if not engine.capabilities.of("log").producer_resume:
            pytest.skip("no resume points here")
        make_topic(engine)
        named, unnamed = engine.producer(producing(identity="loader")), engine.producer(producing())
        named.send(message(1), sequence=5)
        with pytest.raises(ContractError, match="rise"):
            named.send(message(2), sequence=5)
        with pytest.raises(ContractError, match="name"):
            unnamed.send(message(3), sequence=1)
        with pytest.raises(ContractError, match="name"):
            unnamed.resume_point()
        named.close()
        unnamed.close()
        assert [found.id for found in engine.read(names.topic, 0, 0)] == ["e1"]

    def test_a_name_opened_again_fences_the_older_one(self, engine: Engine, engine_factory: EngineFactory) -> None:
        if not engine.capabilities.of("log").producer_resume:
            pytest.skip("no resume points here")
        make_topic(engine)
        older = engine.producer(producing(identity="loader", linger_s=NEVER_S))
        late = older.send(message(1), sequence=1)
        newer = engine_factory().producer(producing(identity="loader"))
        newer.send(message(2), sequence=2).result(timeout=DEADLINE_S)
        with pytest.raises(Fenced):
            older.flush()
        with pytest.raises(Fenced):
            late.result()
        older.close()
        newer.close()
        assert [found.id for found in engine.read(names.topic, 0, 0)] == ["e2"]

    def test_threads_share_a_producer(self, engine: Engine) -> None:
        make_topic(engine, 3)
        producer = engine.producer(producing(batch_records=16, buffer_bytes=2_000))

        def send(first: int) -> None:
            for number in range(first, first + 200):
                producer.send(message(number, key=b"t%d" % first))

        threads = [threading.Thread(target=send, args=(n * 1000,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.close()
        found = [one for number in range(3) for one in engine.read(names.topic, number, 0, records=1000)]
        assert len(found) == len({one.id for one in found}) == 800
        for first in range(4):
            numbers = [int(one.id[1:]) for one in found if one.key == b"t%d" % (first * 1000)]
            assert numbers == list(range(first * 1000, first * 1000 + 200))  # each thread's order is kept

    def test_a_refused_message_leaves_the_others_alone(self, engine: Engine) -> None:
        make_topic(engine)
        producer = engine.producer(producing())
        good = producer.send(message(1))
        with pytest.raises(InvalidMessage):
            producer.send(Message(topic=names.topic, id="\ud800"))
        producer.close()
        assert good.result().offset == names.offset(0)

    def test_a_program_that_ends_without_closing_loses_nothing(self, engine: Engine) -> None:
        make_topic(engine)
        place = type(engine).__module__, type(engine).__name__, engine.url
        subprocess.run(
            [sys.executable, "-c", _FORGETFUL, *place, names.topic, names.durability], check=True, timeout=DEADLINE_S
        )
        assert len(engine.read(names.topic, 0, 0, records=2000)) == 1000
