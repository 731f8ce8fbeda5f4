"""One call to the cluster: bounded in time, its errors translated, its log lines fetched."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import confluent_kafka
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from settled.engines.kafka import faults
from settled.engines.kafka.config import Settings
from settled.errors import SettledError, Unavailable

K = TypeVar("K")
V = TypeVar("V")
CALL_S = 10.0  # one call at the longest; no broker is told after so long
SETTLE_S = 15.0  # all brokers know of a new topic after so long
PAUSE_S = 0.05
LOOK_S = 0.1  # how often what the client says of its connections is looked at
ANSWER_S = 1.0  # a broker that has not answered after so long is asked for again: it may be another one by now
MOVING = {
    KafkaError._TIMED_OUT,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}
GRACE_S = 5.0  # the client itself bounds a call; this is for one that does not


class Cluster:
    """An admin client. Any thread may call it."""

    def __init__(self, settings: Settings, *, call_s: float = CALL_S) -> None:
        self.settings = settings
        self.call_s = call_s
        self._told: KafkaError | None = None  # what the client said last about its connections
        self._answered = False
        setup_ms = int(max(1.0, call_s) * 1000)
        self.client = AdminClient(settings.admin(socket_connection_setup_timeout_ms=setup_ms, error_cb=self._tell))

    def all(
        self,
        call: Callable[..., Mapping[K, concurrent.futures.Future[V]]],
        asked: Any,
        what: str,
        *,
        seconds: float | None = None,
        **named: Any,
    ) -> dict[K, V | confluent_kafka.KafkaException]:
        """What each of the things asked for brought: its result, or the error of this one. `seconds`: how long at most,
        where that is less than for any call.

        Raises the translated error when the whole call failed.
        """
        try:
            futures = call(asked, request_timeout=min(self.call_s, seconds or self.call_s), **named)
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

    def read(
        self, call: Callable[..., Mapping[K, concurrent.futures.Future[V]]], asked: Any, what: str, **named: Any
    ) -> dict[K, V | confluent_kafka.KafkaException]:
        """As `all`, for what changes nothing: asked again while a broker does not answer or is just being replaced. A
        call keeps to the broker that it began with, and keeps a core busy where that one has died."""
        end, seconds = time.monotonic() + self.call_s, ANSWER_S
        while True:
            found = self.all(call, asked, what, seconds=seconds, **named)
            errors = [each.args[0] for each in found.values() if isinstance(each, confluent_kafka.KafkaException)]
            left = end - time.monotonic()
            if left <= 0 or not any(error.code() in MOVING for error in errors):
                return found
            time.sleep(PAUSE_S)
            seconds = min(2 * seconds, max(left, ANSWER_S))

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

    def each(self, found: dict[Any, Any], what: str, *, operation: str = "Describe") -> dict[Any, Any]:
        """The same without errors; raises the first of them, translated. Keys are topics, or begin with one."""
        for key, value in found.items():
            if isinstance(value, confluent_kafka.KafkaException):
                topic = key[0] if isinstance(key, tuple) else str(key)
                raise self.fault(value, what, topic=topic, operation=operation) from value
        return found

    def fault(self, error: confluent_kafka.KafkaException, what: str, **named: str) -> SettledError:
        """The translated error, with the brokers that were asked and why they could not be."""
        translated = faults.translate(error, what, settings=self.settings, **named)
        if isinstance(translated, Unavailable) and self._told is not None:
            refused = faults.translate(self._told, what, settings=self.settings, **named)
            if not isinstance(refused, Unavailable):
                return refused
            translated.message += f"; {self.settings.log.cleaned(self._told.str())}"
        return translated

    def _result(self, future: concurrent.futures.Future[V], what: str) -> V:
        """The future's result. A login that is not accepted is told at once, unless there was an answer before."""
        deadline = time.monotonic() + self.call_s + GRACE_S
        while time.monotonic() < deadline:
            try:
                found = future.result(timeout=LOOK_S)
            except concurrent.futures.TimeoutError:
                self.client.poll(0)
                if self._told is not None and not self._answered:
                    refused = faults.translate(self._told, what, settings=self.settings)
                    if not isinstance(refused, Unavailable):
                        raise refused from None
            except confluent_kafka.KafkaException:
                self.client.poll(0)
                raise
            else:
                self._answered, self._told = True, None
                return found
        raise Unavailable(f"{what}: no answer within {self.call_s + GRACE_S:g} s", hint="look whether the brokers run")

    def _tell(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._told = error

    def _translated(self, error: Exception, what: str) -> Exception:
        if isinstance(error, confluent_kafka.KafkaException):
            return self.fault(error, what)
        return error
