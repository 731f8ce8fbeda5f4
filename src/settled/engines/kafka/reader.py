"""Reads records at stated places, with a consumer that joins no group and commits nothing."""

from __future__ import annotations

import threading
import time
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, TopicPartition

from settled.engines.kafka import faults
from settled.engines.kafka.config import Settings
from settled.errors import Unavailable

NAME = "settled-reader"  # the client demands a group's name; it is never joined


class Reader:
    """Any thread may call it; one reads at a time. Connects with the first read."""

    def __init__(self, settings: Settings, *, call_s: float) -> None:
        self._settings = settings
        self._call_s = call_s
        self._lock = threading.Lock()
        self._consumer: Any = None

    def read(self, topic: str, partition: int, offset: int, end: int, records: int) -> list[Any]:
        """Up to `records` messages from `offset` on and below `end`. Raises what `faults.translate` makes of errors."""
        if offset >= end or records < 1:
            return []
        with self._lock:
            consumer = self._opened()
            try:
                consumer.assign([TopicPartition(topic, partition, offset)])
                return self._messages(consumer, topic, partition, end, records)
            except confluent_kafka.KafkaException as error:
                raise self._fault(error, topic) from error
            finally:
                consumer.unassign()

    def close(self) -> None:
        with self._lock:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None

    def _messages(self, consumer: Any, topic: str, partition: int, end: int, records: int) -> list[Any]:
        found: list[Any] = []
        deadline = time.monotonic() + self._call_s
        while len(found) < records:
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"reading {topic}/{partition}: nothing came within {self._call_s:g} s "
                    f"(brokers asked: {', '.join(self._settings.addresses)})",
                    hint="look whether the partition has a leader",
                )
            message = consumer.poll(0.2)
            error = message.error() if message is not None else None
            if message is None or (error is not None and passing(error)):
                continue
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise self._fault(error, topic)
            if error is not None or message.offset() >= end:
                break
            found.append(message)
            if message.offset() + 1 >= end:
                break
        return found

    def _fault(self, error: KafkaError | confluent_kafka.KafkaException, topic: str) -> Exception:
        what = f"reading topic {topic!r}"
        return faults.translate(error, what, settings=self._settings, topic=topic, operation="Read")

    def _opened(self) -> Any:
        if self._consumer is None:
            self._consumer = confluent_kafka.Consumer(
                self._settings.consumer(
                    group_id=NAME,
                    enable_auto_commit=False,
                    auto_offset_reset="error",
                    isolation_level="read_committed",
                    enable_partition_eof=True,
                    check_crcs=True,
                    queued_min_messages=1,
                    queued_max_messages_kbytes=4096,
                    fetch_queue_backoff_ms=0,
                )
            )
        return self._consumer


def passing(error: KafkaError) -> bool:
    """Whether the client goes on by itself: a broker that is away, a leader that moves."""
    return bool(error.retriable()) or error.code() in {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    }
