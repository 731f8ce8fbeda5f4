"""App: a contract, a handler, a log and an effect store, put together.

app = App(topic="orders", group="reserve")

@app.handler
def reserve(tx, record):
    tx.execute("INSERT INTO reservation (order_id) VALUES (?)", [record.key.decode()])

app.publish(key="o-1", value={"sku": "x"})
app.run()
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, overload

import msgspec

from settled import connect, scheduling
from settled.contract import specs
from settled.contract.load import from_mapping, load, with_changes
from settled.contract.model import Contract
from settled.delivery.binding import Binding, check_handler
from settled.delivery.tailing import Tailing
from settled.delivery.watcher import Sweep, Watcher
from settled.delivery.worker import Worker
from settled.engine import Engine, Pending, Producer, Receipt
from settled.errors import ContractError, Unsupported
from settled.events import Events
from settled.operations.progress import is_drained
from settled.operations.relaying import RelayBeside
from settled.outbox.policy import RelayPolicy
from settled.outbox.relay import Relay
from settled.record import Message, new_id, to_us
from settled.signals import on_signals
from settled.store import Store, Tx
from settled.tokens import NotYet, Visible, read_token, token_of, wait_for

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

DEFAULT_ENGINE = "sqlite:///settled-log.db"
DEFAULT_STORE = "sqlite:///settled-effects.db"


class App:
    """One interaction: its contract, its handler, where its log and its effects live.

    contract     the path of a contract file, a Contract, or none: then `topic` (and `group`) and defaults
    engine, store   URLs; else SETTLED_ENGINE and SETTLED_STORE; else two SQLite files in the working directory
    topic, group    short for transport.topic and delivery.group
    code_version    what ran, kept as evidence with quarantined records
    Other keywords are sections of the contract, as in the file: `delivery={"concurrency": 4}`; they win over it.
    """

    def __init__(
        self,
        contract: str | os.PathLike[str] | Contract | None = None,
        *,
        engine: str | None = None,
        store: str | None = None,
        topic: str | None = None,
        group: str | None = None,
        code_version: str = "",
        **sections: Any,
    ) -> None:
        self.contract = _contract(contract, topic, group, sections)
        self.engine_url = engine or os.environ.get("SETTLED_ENGINE") or DEFAULT_ENGINE
        self.store_url = store or os.environ.get("SETTLED_STORE") or DEFAULT_STORE
        self.events = Events()
        self._code_version = code_version
        self._handler: Callable[..., Any] | None = None
        self._batch = False
        self._sweeps: list[Sweep | None] = []  # one at most; none: what is lost stays lost
        self._setups: list[Callable[[Tx], None]] = []
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._identity = ""  # the topic's incarnation
        self._store: Store | None = None
        self._producer: Producer | None = None
        self._worker: Worker | None = None

    # What the user declares.

    @overload
    def handler(self, function: F) -> F: ...
    @overload
    def handler(self, *, batch: bool = False) -> Callable[[F], F]: ...
    def handler(self, function: F | None = None, *, batch: bool = False) -> F | Callable[[F], F]:
        """Declare the function that makes the effect: `(tx, record)`, or `(tx, records)` with `batch=True`.

        Return: settled. Raise `Retry(after=...)`: again later. Raise `Reject(reason)`: to quarantine at once. Any other
        exception: the contract's poison policy decides.
        """

        def declare(function: F) -> F:
            if self._handler is not None:
                raise ContractError(
                    f"this app has a handler already: {self._handler.__name__!r}",
                    field="handler",
                    hint="an App is one interaction; make a second App for a second handler",
                )
            check_handler(function, batch=batch)
            self._handler, self._batch = function, batch
            return function

        return declare(function) if function is not None else declare

    def sweep(self, every: float | str | timedelta | None) -> Callable[[F], F]:
        """Declare the function `(tx)` that repairs what lost hints left out of date, for the form `notification`. It
        runs at the start, after known losses, and `every` so often: seconds, a duration like "30s", or none: not by
        time. `app.sweep(None)` without a function says that what is lost stays lost."""
        every_s = specs.seconds(every)
        if self._sweeps:
            raise ContractError("this app has a sweep already", field="sweep", hint="one function finds all of it")
        self._sweeps.append(None)

        def declare(function: F) -> F:
            self._sweeps[0] = Sweep(function, every_s)
            return function

        return declare

    def setup(self, function: F) -> F:
        """Declare a function `(tx)` that prepares the user's tables; it runs in one transaction at each start, one
        process at a time, so write `CREATE TABLE IF NOT EXISTS`."""
        self._setups.append(function)
        return function

    def at(self, *, engine: str, store: str, contract: Contract | None = None) -> App:
        """The same handler and set-up on another log and store, with connections of its own: for drills and tests."""
        other = App(contract or self.contract, engine=engine, store=store, code_version=self._code_version)
        other._handler, other._batch, other._setups = self._handler, self._batch, list(self._setups)
        other._sweeps = list(self._sweeps)
        return other

    # Connections, opened at first use.

    @property
    def engine(self) -> Engine:
        """The log; its topic exists once this returns."""
        with self._lock:
            if self._engine is None:
                opened = connect.engine(self.engine_url)
                try:
                    self._identity = opened.ensure_topic(specs.topic_spec(self.contract)).identity
                except BaseException:
                    opened.close()
                    raise
                self._engine = opened
            return self._engine

    @property
    def store(self) -> Store:
        """The effect store, migrated, the user's set-up done."""
        with self._lock:
            if self._store is None:
                opened = connect.store(self.store_url)
                try:
                    opened.migrate()
                    for function in self._setups:
                        opened.prepare(function)
                except BaseException:
                    opened.close()
                    raise
                self._store = opened
            return self._store

    # Publishing.

    def producer(self, identity: str | None = None) -> Producer:
        """A producer of its own, with the contract's batching and durability; close it. `identity` names it, so that
        after a restart its `resume_point` says how far it came."""
        return self.engine.producer(specs.producer_spec(self.contract, identity))

    def send(self, message: Message) -> Pending:
        """Put a message in the next batch; `result()` of what comes back waits until it is accepted."""
        engine = self.engine
        with self._lock:
            if self._producer is None:
                self._producer = engine.producer(specs.producer_spec(self.contract))
            producer = self._producer
        return producer.send(message)

    def publish(
        self,
        value: Any = None,
        *,
        key: bytes | str | None = None,
        id: str | None = None,
        type: str | None = None,
        version: int | None = None,
        event_time: datetime | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        correlation_id: str | None = None,
        causation_id: str | None = None,
        not_before: datetime | None = None,
        priority: int | None = None,
        tenant: bytes | str | None = None,
    ) -> Receipt:
        """Publish one message and wait until it is accepted at the contract's durability point.

        `value` and `key` may be bytes, text (sent as UTF-8) or none; any other value is sent as JSON, and its fields
        named by the contract's transport.key and transport.version are the key and the version unless these are
        given. The receipt's `token` lets a reader wait for the effect. `not_before` (with its zone), `priority` (0 to
        9, higher first) and `tenant` are for a queue, see `settled.scheduling`. Raises InvalidMessage, TooLarge,
        Unavailable; Unsupported for what the contract's form does not obey.
        """
        scheduled = scheduling.headers(not_before=not_before, priority=priority, tenant=tenant)
        if scheduled:
            specs.require_scheduling(self.contract, scheduled)
        transport = self.contract.transport
        if key is None:
            key = _text(_field(value, transport.key))
        if version is None:
            version = _field(value, transport.version)
        receipt = self.send(
            Message(
                topic=self.contract.transport.topic,
                key=_bytes(key),
                value=_bytes(value),
                headers=(*headers, *scheduled),
                id=new_id() if id is None else id,
                type=type,
                version=version,
                event_time_us=None if event_time is None else to_us(event_time),
                correlation_id=correlation_id,
                causation_id=causation_id,
            )
        ).result()
        return msgspec.structs.replace(receipt, token=token_of(receipt, self._identity))

    # Reading what was written.

    def token(self, receipt: Receipt) -> str:
        """The position token of what `send` put into this app's topic; `publish` gives it with its receipt."""
        if receipt.topic != self.contract.transport.topic:
            raise ContractError(f"the receipt is of topic {receipt.topic!r}", field="receipt", hint="ask its own app")
        self.engine  # noqa: B018 - opened, the topic's incarnation is known
        return token_of(receipt, self._identity)

    def wait(self, token: str, timeout: float) -> Visible | NotYet:
        """Wait until the record that the token names is settled in this app's store, at most `timeout` seconds. Any
        thread. Raises ContractError for a garbled token and for one of another topic."""
        found = read_token(token)
        if found.topic != self.contract.transport.topic:
            raise ContractError(
                f"the token is of topic {found.topic!r}, this app's is {self.contract.transport.topic!r}",
                field="token",
                hint="wait on the app whose effect you read",
            )
        if self.contract.delivery.mode == "at-most-once":
            raise Unsupported(
                "under at-most-once the frontier is ahead of the effects: nobody can tell when one is visible",
                field="delivery.mode",
                hint="use at-least-once or effectively-once",
            )
        if found.offset is None and self.contract.delivery.mode != "effectively-once":
            raise Unsupported(
                "the token names an event and no place, and at-least-once keeps no marks of events",
                field="delivery.mode",
                hint="use effectively-once; messages of a queue and of an outbox have no place to wait for",
            )
        return wait_for(found, specs.consumer_spec(self.contract).consumer, self.store, timeout, begun=False)

    def read_your_writes(
        self, token: str | None, *, projection: Callable[[], T], fallback: Callable[[], T], timeout: float
    ) -> T:
        """What `projection` reads once it shows the record's effect; else, after `timeout` seconds or when there will
        be no effect, what `fallback` reads from the write model. Without a token: the projection, at once."""
        if not token:
            return projection()
        return projection() if self.wait(token, timeout).effect else fallback()

    def tail(self, *, after: str | None = None, behind: int = 100_000, idle: float | None = None) -> Tailing:
        """The topic's records from the return of this call on, without a group and with nothing written: iterate over
        it, close it. `missed` says how much passed since the position `after` of an earlier tail, or was passed over
        because this one was more than `behind` records behind. It ends when nothing comes for `idle` seconds."""
        return Tailing(self.engine.tail(self.contract.transport.topic, after=after, behind=behind), idle_s=idle)

    # Working.

    def worker(self, *, member: str | None = None, bind: Callable[..., Binding] = Binding) -> Worker:
        """A worker, not yet running. Its `run` blocks; its `stop` may be called from any thread. `bind` makes what
        calls the handler; a drill puts its own in that place."""
        specs.require_form(self.contract, hints=False)
        subscription = specs.subscription(self.contract, member=member, code_version=self._code_version)
        return Worker(self.engine, self.store, subscription, self._bound(bind), events=self.events)

    def watcher(self, *, bind: Callable[..., Binding] = Binding) -> Watcher:
        """As `worker`, for the form `notification`: what works on hints. Raises ContractError without a sweep."""
        specs.require_form(self.contract, hints=True)
        if not self._sweeps:
            raise ContractError(
                "hints may be lost, and nothing repairs that",
                field="sweep",
                hint="declare @app.sweep(every=30), or say app.sweep(None): what is lost stays lost",
            )
        subscription = specs.subscription(self.contract, code_version=self._code_version)
        return Watcher(self.engine, self.store, subscription, self._bound(bind), self._sweeps[0], events=self.events)

    def _bound(self, bind: Callable[..., Binding]) -> Callable[[], Binding]:
        handler, batch = self._handler, self._batch
        if handler is None:
            raise ContractError(
                "this app has no handler", field="handler", hint="decorate a function with @app.handler"
            )
        return lambda: bind(handler, batch=batch)

    def relay(
        self,
        policy: RelayPolicy | None = None,
        *,
        name: str | None = None,
        relayed: Callable[[list[Receipt]], object] | None = None,
    ) -> Relay:
        """A relay from this app's store to its log, not yet running. Its `run` blocks; its `stop` may be called from
        any thread. `relayed` is told of each batch's receipts, with their tokens, see `settled.outbox.Relay`. Unless
        the policy states a durability, it is the engine's most durable for topics of the contract's form."""
        policy = policy or RelayPolicy()
        if policy.durability is None:
            most = self.engine.capabilities.of(self.contract.transport.form).most_durable
            policy = msgspec.structs.replace(policy, durability=most)
        return Relay(self.store, self.engine, policy, name=name, events=self.events, relayed=relayed)

    def run(self, *, drain: bool = False, member: str | None = None, relay: bool | None = None) -> None:
        """Work until SIGTERM or SIGINT (a second one stops at once), or, with `drain`, until the whole topic as it
        stood is settled for the group; of hints, until those at hand and one sweep ran. Call it from the main thread to
        have the signals handled.

        relay            relay the outbox in a thread beside: True always, False never (relays run elsewhere), none as
                         soon as there is something to relay
        """
        if self.contract.transport.form == "notification":
            working: Worker | Watcher = self.watcher()
        else:
            working = self.worker(member=member)
        beside: AbstractContextManager[Any] = nullcontext()
        if relay is not False:
            beside = RelayBeside(lambda: self.relay(name=member), self.store, at_once=bool(relay), drain=drain)
        with beside, stops_on_signals(working):
            if isinstance(working, Watcher):
                working.run(drain=drain)
            else:
                working.run(drained=is_drained(self.engine, self.store, self.contract) if drain else None)

    def drain(self) -> None:
        """Settle what the topic holds and return; for jobs and tests."""
        self.run(drain=True)

    def close(self) -> None:
        """Send what is buffered and release everything. A second call does nothing."""
        with self._lock:
            opened = [each for each in (self._producer, self._engine, self._store) if each is not None]
            self._producer = self._engine = self._store = None
        for each in opened:
            each.close()

    def __enter__(self) -> App:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _contract(
    contract: str | os.PathLike[str] | Contract | None,
    topic: str | None,
    group: str | None,
    sections: Mapping[str, Any],
) -> Contract:
    """The contract that is in force: the file's (or the one given), with what the keywords state on top."""
    stated: dict[str, Any] = {name: value for name, value in sections.items()}
    if topic is not None:
        stated["transport"] = {"topic": topic, **stated.get("transport", {})}
    if group is not None:
        stated["delivery"] = {"group": group, **stated.get("delivery", {})}
    if contract is None:
        return from_mapping(stated)
    if not isinstance(contract, Contract):
        contract = load(Path(contract))
    return with_changes(contract, stated) if stated else contract


def _field(value: Any, name: str | None) -> Any:
    """The field of a value that is not bytes or text yet; none if it has no such field."""
    if name is None or value is None or isinstance(value, bytes | str):
        return None
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _text(found: Any) -> bytes | str | None:
    return found if found is None or isinstance(found, bytes | str) else str(found)


def _bytes(part: Any) -> bytes | None:
    if part is None or isinstance(part, bytes):
        return part
    if isinstance(part, str):
        return part.encode()
    return msgspec.json.encode(part)


def stops_on_signals(worker: Worker | Watcher) -> on_signals:
    """While inside: the first SIGTERM or SIGINT stops the worker in good order, the second at once."""
    return on_signals(lambda: worker.abandon() if worker.stopping else worker.stop())
