"""One call to the cluster: bounded in time, its errors translated, its log lines fetched."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import confluent_kafka
from confluent_kafka.admin import AdminClient

from settled.engines.kafka import faults
from settled.engines.kafka.config import Settings
from settled.errors import Unavailable

K = TypeVar("K")
V = TypeVar("V")
CALL_S = 10.0  # one call at the longest; no broker is told after so long
SETTLE_S = 15.0  # all brokers know of a new topic after so long
PAUSE_S = 0.05


class Cluster:
    """An admin client. Any thread may call it."""

    def __init__(self, settings: Settings, *, call_s: float = CALL_S) -> None:
        self.settings = settings
        self.client = AdminClient(settings.admin(socket_connection_setup_timeout_ms=int(max(1.0, call_s) * 1000)))
        self.call_s = call_s

    def all(
        self, call: Callable[..., Mapping[K, concurrent.futures.Future[V]]], asked: Any, what: str, **named: Any
    ) -> dict[K, V | confluent_kafka.KafkaException]:
        """What each of the things asked for brought: its result, or the error of this one.

        Raises the translated error when the whole call failed.
        """
        try:
            futures = call(asked, request_timeout=self.call_s, **named)
        except (confluent_kafka.KafkaException, ValueError, TypeError) as error:
            raise self._translated(error, what) from error
        found: dict[K, V | confluent_kafka.KafkaException] = {}
        for key, future in futures.items():
            try:
                found[key] = self._result(future, what)
            except confluent_kafka.KafkaException as error:
                found[key] = error
        self.client.poll(0)
        return found

    def one(self, call: Callable[..., concurrent.futures.Future[V]], what: str, **named: Any) -> V:
        """What a call with one answer brought. Raises the translated error."""
        try:
            return self._result(call(request_timeout=self.call_s, **named), what)
        except (confluent_kafka.KafkaException, ValueError, TypeError) as error:
            raise self._translated(error, what) from error
        finally:
            self.client.poll(0)

    def until(self, look: Callable[[], V | None], what: str, seconds: float = SETTLE_S) -> V:
        """Look until there is something, or Unavailable."""
        deadline = time.monotonic() + seconds
        while (found := look()) is None:
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"{what}: not within {seconds:g} s", hint="look whether all brokers run; it is tried again"
                )
            time.sleep(PAUSE_S)
        return found

    def fault(self, error: confluent_kafka.KafkaException, what: str, **named: str) -> Exception:
        """The translated error, with the brokers that were asked."""
        return faults.translate(error, what, settings=self.settings, **named)

    def _result(self, future: concurrent.futures.Future[V], what: str) -> V:
        try:
            return future.result(timeout=self.call_s + 5)
        except concurrent.futures.TimeoutError as error:
            raise Unavailable(
                f"{what}: no answer within {self.call_s + 5:g} s", hint="look whether the brokers run"
            ) from error

    def _translated(self, error: Exception, what: str) -> Exception:
        if isinstance(error, confluent_kafka.KafkaException):
            return self.fault(error, what)
        return error
