"""The stream that the demo publishes, made from a seed, and what must come of it.

`generate` draws the lives of orders: requested, changed, cancelled, requested again, until shipped. One tenant has 35%
of the traffic, 1% of the messages are published twice and 1% arrive after a later version of their order.
`foretell` reads the finished stream as a consumer would and says which messages must have an effect; it knows nothing
of how the stream was drawn.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from settled.record import Message

BIG_TENANT, BIG_SHARE = "tenant-00", 0.35
TENANTS = 20
OPEN_ORDERS = 12  # a tenant, at a time
TWICE_SHARE = 0.01
LATE_SHARE = 0.01
MOST_DISTANCE = 1_000  # messages between the two copies of one
MOST_VERSIONS = 12

# From one type of event to what may follow it.
FOLLOWS = {
    "requested": ("changed", "changed", "cancelled", "shipped"),
    "changed": ("changed", "cancelled", "shipped"),
    "cancelled": ("requested",),
}


class Payload(msgspec.Struct, frozen=True):
    """The value of each message, as JSON."""

    order_id: str
    reservation_version: int
    tenant: str
    sku: str
    quantity: int


class Foretold(msgspec.Struct, frozen=True):
    """What must come of a stream: event ids in the order of their first publication, by their ending."""

    published: int
    applied: list[str]
    stale: list[str]

    @property
    def duplicates(self) -> int:
        return self.published - len(self.applied) - len(self.stale)


class _Order:
    """An order on its way through its versions."""

    def __init__(self, draw: random.Random, tenant: str, number: int) -> None:
        self.id = f"order-{number:06d}"
        self.tenant, self.version, self.type = tenant, 0, ""
        self.sku, self.quantity = f"sku-{draw.randrange(500):03d}", draw.randint(1, 9)

    def next(self, draw: random.Random, topic: str) -> Message:
        self.version += 1
        self.type = draw.choice(FOLLOWS[self.type]) if self.type else "requested"
        if self.type == "changed":
            self.quantity = draw.randint(1, 9)
        reserved = 0 if self.type in ("cancelled", "shipped") else self.quantity
        payload = Payload(self.id, self.version, self.tenant, self.sku, reserved)
        return Message(
            topic=topic,
            key=self.id.encode(),
            value=msgspec.json.encode(payload),
            headers=(("tenant", self.tenant.encode()),),
            id=f"{self.id}/{self.version}",
            type=self.type,
            version=self.version,
        )

    @property
    def over(self) -> bool:
        return self.type == "shipped" or self.version >= MOST_VERSIONS


def generate(records: int, *, seed: int, topic: str) -> list[Message]:
    """`records` messages in the order in which they are published, those that come twice counted twice."""
    draw = random.Random(seed)
    twice = int(records * TWICE_SHARE)
    stream = _lives(draw, records - twice, topic)
    _come_late(draw, stream, int(records * LATE_SHARE))
    return _come_twice(draw, stream, twice)


def foretell(stream: Sequence[Message]) -> Foretold:
    """What must come of each message: its first copy has an effect unless a later version of its key came before."""
    applied: list[str] = []
    stale: list[str] = []
    seen: set[str] = set()
    highest: dict[bytes | None, int] = {}
    for message in stream:
        if message.id in seen:
            continue
        seen.add(message.id)
        version = message.version or 0
        if version <= highest.get(message.key, 0):
            stale.append(message.id)
        else:
            highest[message.key] = version
            applied.append(message.id)
    return Foretold(len(stream), applied, stale)


def _lives(draw: random.Random, count: int, topic: str) -> list[Message]:
    """The lives of many orders, interleaved; each order's versions rise."""
    small = [f"tenant-{number:02d}" for number in range(1, TENANTS)]
    open_orders: dict[str, list[_Order]] = {tenant: [] for tenant in (BIG_TENANT, *small)}
    stream: list[Message] = []
    made = 0
    while len(stream) < count:
        tenant = BIG_TENANT if draw.random() < BIG_SHARE else draw.choice(small)
        orders = open_orders[tenant]
        if len(orders) < OPEN_ORDERS:
            made += 1
            orders.append(_Order(draw, tenant, made))
        order = draw.choice(orders)
        stream.append(order.next(draw, topic))
        if order.over:
            orders.remove(order)
    return stream


def _come_late(draw: random.Random, stream: list[Message], count: int) -> None:
    """Let `count` messages change places with the next version of their order. No message does so twice."""
    before: dict[bytes | None, int] = {}
    pairs: list[tuple[int, int]] = []
    for place, message in enumerate(stream):
        if message.key in before:
            pairs.append((before[message.key], place))
        before[message.key] = place
    draw.shuffle(pairs)
    moved: set[int] = set()
    for early, late in pairs:
        if len(moved) == 2 * count:
            return
        if early not in moved and late not in moved:
            stream[early], stream[late] = stream[late], stream[early]
            moved |= {early, late}


def _come_twice(draw: random.Random, stream: list[Message], count: int) -> list[Message]:
    """Publish `count` messages once more, unchanged, up to `MOST_DISTANCE` messages later."""
    copies: dict[int, list[Message]] = {}
    for place in draw.sample(range(len(stream)), count):
        behind = min(len(stream) - 1, place + draw.randint(1, MOST_DISTANCE))
        copies.setdefault(behind, []).append(stream[place])
    return [each for place, message in enumerate(stream) for each in (message, *copies.get(place, ()))]
