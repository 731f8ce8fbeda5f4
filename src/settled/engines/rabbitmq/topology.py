"""Queues and exchanges: named, made, compared, counted. Each call has a connection of its own, for as long as it takes.

queue     the topic is a durable quorum queue of its name
pub/sub   the topic is a durable fanout exchange of its name; each group has a quorum queue `topic:group` bound to it
hints     a notification is a durable fanout exchange `topic:hints`; nothing durable is bound to it
logs      streams, see `streams`
tails     a reader without a group has an exclusive queue `topic::tail:...` bound to the exchange, see `tail`
slots     the lock of a slot is an exclusive queue `topic:group:slot:n`: a second declaration is refused while the
          connection that made it lives
dead      beside each quorum queue stands `queue:dead`, where the broker puts what it gives up to deliver

Names of topics and groups hold no colon, so none of these is another's. A quorum queue whose topic has one slot has a
single active consumer: then, and only then, the order holds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
import pika
from pika.adapters.blocking_connection import BlockingChannel

from settled.engine import Form, TopicSpec
from settled.engines.rabbitmq import faults
from settled.engines.rabbitmq.settings import Settings
from settled.errors import ContractError, SettledError, Unavailable, Unsupported
from settled.record import checked_name

SLOTS = 1_000  # of a topic whose number was not told to this process
NAME_BYTES = 255
MAX_MESSAGE_BYTES = 16 * 1024 * 1024


class Source(msgspec.Struct, frozen=True):
    """Where a group takes a topic's records from."""

    topic: str
    queue: str
    slots: int
    single: bool  # a single active consumer: order holds
    pubsub: bool = False

    def lock(self, group: str, slot: int) -> str:
        return f"{self.topic}:{group}:slot:{slot}"


class Counted(msgspec.Struct, frozen=True):
    ready: int
    consumers: int


class There(msgspec.Struct, frozen=True):
    """What a topic is. `counted`: what its queue holds, of a queue, or subscriptions that are asked for."""

    form: Form
    counted: Counted | None = None


def facts_of(topic: str) -> str:
    """The stream that says what a log is."""
    return f"{topic}:log:facts"


def exchange_of(topic: str, form: Form) -> str:
    """Empty for a queue: its messages go to the default exchange."""
    return {"pubsub": topic, "notification": f"{topic}:hints"}.get(form, "")


class Topology:
    """Any thread may call it. Each step is bounded by the URL's connect_timeout; then it raises Unavailable."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def connect(self) -> list[str]:
        """The names of the clusters that the addresses which answer belong to, one for each. Raises what the last
        address said when none answers."""
        found: list[str] = []
        fault: SettledError | None = None
        for turn in range(len(self.settings.addresses)):
            try:
                with self._connection(turn) as connection:
                    found.append(str(connection._impl.server_properties.get("cluster_name", "")))
            except Unavailable as error:
                fault = error
        if not found and fault is not None:
            raise fault
        return found

    def ensure(self, spec: TopicSpec) -> None:
        """Make the topic, or compare it: one that is there with other arguments is refused, and nothing is changed."""
        _check(spec)
        name = spec.name
        what = f"making topic {name!r}"
        with self.channels(what, name) as channel:
            there = self.form_of(channel, name)
            if there is not None and there.form != spec.form:
                raise other_form(name, there.form, spec.form)
            if spec.form == "queue":
                self._declare(channel, name, single=spec.partitions == 1)
            else:
                channel(lambda ch: ch.exchange_declare(exchange_of(name, spec.form), "fanout", durable=True))

    def is_there(self, spec: TopicSpec) -> bool:
        """Whether the topic is there, and as the spec wants it; false: it is not there. Raises as `ensure` does, makes
        nothing."""
        if self.there(spec.name) is None:
            return False
        self.ensure(spec)
        return True

    def source(self, topic: str, group: str, *, ordered: bool, told: int | None) -> Source:
        """Where a group takes the topic from; of pub/sub, its subscription is made. `told`: how many slots it has, as
        far as this process knows. Raises ContractError where the order that is asked for cannot be kept."""
        if told is not None and told > 1 and ordered:
            raise _unordered(topic, told)
        queue = f"{topic}:{group}"
        if len(f"{queue}:slot:1000".encode()) > NAME_BYTES:
            raise ContractError(
                f"topic {topic!r} and group {group!r} are too long together",
                field="group",
                value=group,
                hint="RabbitMQ takes names of 255 bytes; shorten one of them",
            )
        with self.channels(f"joining topic {topic!r}", topic) as channel:
            if self._is_exchange(channel, topic):
                single = told == 1 or (told is None and ordered)
                self._declare(channel, queue, single=single)
                channel(lambda ch: ch.queue_bind(queue, topic))
                return Source(topic, queue, 1 if single else told or SLOTS, single, pubsub=True)
            if self._count(channel, topic) is None:
                if self._is_exchange(channel, exchange_of(topic, "notification")):
                    raise _no_groups(topic)
                raise faults.absent(topic)
            single = told == 1 if told is not None else self._is_single(channel, topic)
            self._declare(channel, topic, single=single)
        if ordered and not single:
            raise _unordered(topic, told)
        return Source(topic, topic, 1 if single else told or SLOTS, single)

    def there(self, topic: str, groups: Collection[str] = ()) -> There | None:
        """What the topic is; none: there is no such topic. `groups`: of pub/sub, whose subscriptions are counted."""
        with self.channels(f"looking at topic {topic!r}", topic) as channel:
            found = self.form_of(channel, topic)
            if found is None or found.form != "pubsub" or not groups:
                return found
            counts = [self._count(channel, f"{topic}:{group}") for group in groups]
        there = [each for each in counts if each is not None]
        return There("pubsub", Counted(sum(each.ready for each in there), sum(each.consumers for each in there)))

    def counted(self, queue: str) -> tuple[bool, Counted | None]:
        """Whether there is a pub/sub topic of this name, else what the queue holds; none: there is neither."""
        with self.channels(f"looking at {queue!r}", queue) as channel:
            if self._is_exchange(channel, queue):
                return True, None
            return False, self._count(channel, queue)

    def dead(self, queue: str) -> int:
        """How many messages the broker gave up to deliver."""
        with self.channels(f"looking at {queue!r}", queue) as channel:
            found = self._count(channel, f"{queue}:dead")
            return 0 if found is None else found.ready

    def held(self, source: Source, group: str) -> list[int]:
        """The slots that some member holds now."""
        found = []
        with self.channels(f"looking at group {group!r}", source.topic) as channel:
            for slot in range(min(source.slots, SLOTS)):
                code = channel.code(partial(_look, name=source.lock(group, slot)))
                if code == faults.LOCKED:
                    found.append(slot)
                elif code == faults.NOT_FOUND and source.slots == SLOTS:
                    break  # members take the first that is free: there are no more, or nearly
        return found

    # Steps.

    def form_of(self, channel: Channels, topic: str) -> There | None:
        """As `there`, on a connection that is open."""
        if self._is_exchange(channel, topic):
            return There("pubsub")
        counted = self._count(channel, topic)
        if counted is not None:
            return There("queue", counted)
        if self._is_exchange(channel, exchange_of(topic, "notification")):
            return There("notification")
        return There("log") if self._count(channel, facts_of(topic)) is not None else None

    def _declare(self, channel: Channels, queue: str, *, single: bool) -> None:
        dead = f"{queue}:dead"
        channel(lambda ch: ch.queue_declare(dead, durable=True, arguments={"x-queue-type": "quorum"}))
        arguments = self.arguments(queue, single=single)
        channel(lambda ch: ch.queue_declare(queue, durable=True, arguments=arguments))

    def arguments(self, queue: str, *, single: bool) -> dict[str, Any]:
        """What a quorum queue of settled's is declared with. Dead letters reach the dead queue before they leave this
        one, which the broker only does where a full queue refuses messages."""
        single_active = {"x-single-active-consumer": True} if single else {}
        return {
            "x-queue-type": "quorum",
            "x-delivery-limit": self.settings.delivery_limit,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": f"{queue}:dead",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
            **single_active,
        }

    def _is_single(self, channel: Channels, queue: str) -> bool:
        """By comparison: the broker refuses a declaration with another argument, and changes nothing."""
        arguments = self.arguments(queue, single=True)
        return channel.code(lambda ch: ch.queue_declare(queue, durable=True, arguments=arguments)) == 0

    def _is_exchange(self, channel: Channels, name: str) -> bool:
        return channel.code(lambda ch: ch.exchange_declare(name, passive=True)) == 0

    def _count(self, channel: Channels, queue: str) -> Counted | None:
        found: list[Any] = []
        code = channel.code(lambda ch: found.append(ch.queue_declare(queue, passive=True).method))
        if code == faults.NOT_FOUND:
            return None
        if code == faults.LOCKED:
            raise ContractError(f"queue {queue!r} is exclusive to another program", field="topic", value=queue)
        return Counted(found[0].message_count, found[0].consumer_count)

    @contextmanager
    def _connection(self, turn: int) -> Iterator[pika.BlockingConnection]:
        what = "connecting to RabbitMQ"
        try:
            connection = pika.BlockingConnection(self.settings.parameters(turn, "settled"))
        except faults.ERRORS as error:
            raise faults.translate(error, what, self.settings) from error
        try:
            faults.require_broker(connection._impl.server_properties)
            yield connection
        finally:
            with contextlib.suppress(*faults.ERRORS):
                connection.close()

    @contextmanager
    def channels(self, what: str, topic: str, first: int = 0) -> Iterator[Channels]:
        """On a connection to the first address that answers, from the one numbered `first` on."""
        fault: SettledError | None = None
        for turn in range(len(self.settings.addresses)):
            opening = self._connection(first + turn)
            try:
                connection = opening.__enter__()
            except Unavailable as error:
                fault = error
                continue
            try:
                yield Channels(connection, what, topic, self.settings)
            finally:
                opening.__exit__(None, None, None)
            return
        assert fault is not None
        raise fault


class Channels:
    """A channel, and another one after each refusal: a refusal closes the channel."""

    def __init__(self, connection: pika.BlockingConnection, what: str, topic: str, settings: Settings) -> None:
        self._connection, self._what, self._topic, self._settings = connection, what, topic, settings
        self._channel: BlockingChannel | None = None

    def __call__(self, step: Callable[[BlockingChannel], Any]) -> None:
        """Do it. Raises the translated refusal."""
        try:
            if self._channel is None or not self._channel.is_open:
                self._channel = self._connection.channel()
            step(self._channel)
        except faults.ERRORS as error:
            raise faults.translate(error, self._what, self._settings, topic=self._topic) from error

    def code(self, step: Callable[[BlockingChannel], Any]) -> int:
        """Do it; the code of the refusal, 0: it was done. Rights that are missing are raised."""
        try:
            self(step)
        except SettledError as error:
            code = faults.code_of(error.__cause__)
            if code in (faults.NOT_FOUND, faults.LOCKED, faults.PRECONDITION_FAILED):
                return code
            raise
        return 0


def _look(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, passive=True)


def _check(spec: TopicSpec) -> None:
    require_name(spec.name)
    if spec.compact or spec.retention_bytes is not None:
        field = "compact" if spec.compact else "retention_bytes"
        raise Unsupported(
            f"a {spec.form} on RabbitMQ has no history: {field} says nothing there",
            field=field,
            hint="leave it out",
        )
    if not 1 <= spec.partitions <= SLOTS:
        raise ContractError(
            f"{spec.partitions} slots are not from 1 to {SLOTS}", field="partitions", value=spec.partitions
        )
    if spec.retention_s is not None and spec.retention_s <= 0:
        raise ContractError("retention must be above 0", field="retention_s", value=spec.retention_s)
    require_limit(spec.max_message_bytes)


def require_name(topic: str) -> None:
    """Raises ContractError for what no topic is called."""
    checked_name("topic", topic)
    if topic.startswith("amq."):
        raise ContractError("names that begin with amq. are the broker's", field="topic", value=topic)


def require_limit(limit: int | None) -> None:
    """Raises ContractError for a limit of a message's bytes that cannot be."""
    if limit is not None and not 0 < limit <= MAX_MESSAGE_BYTES:
        raise ContractError(
            f"a limit of {limit} bytes is not from 1 to {MAX_MESSAGE_BYTES}", field="max_message_bytes", value=limit
        )


def other_form(name: str, there: str, wanted: str) -> ContractError:
    return ContractError(
        f"topic {name!r} is a {there}, not a {wanted}",
        field="form",
        value=wanted,
        hint="choose another name, or state the form that it has",
    )


def _no_groups(topic: str) -> ContractError:
    return ContractError(
        f"topic {topic!r} is a notification: no group reads it, each process hears all of it",
        field="topic",
        value=topic,
        hint="state transport.form: notification; its watcher reads it, or App.tail",
    )


def _unordered(topic: str, slots: int | None) -> ContractError:
    told = f"{slots} slots" if slots is not None else "several slots"
    return ContractError(
        f"topic {topic!r} has {told}: its members compete, and no order can be kept",
        field="ordering",
        value="key",
        hint="state delivery.ordering: none; or one slot, transport.partitions: 1, of which one member works at a time",
    )
