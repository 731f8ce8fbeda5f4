"""Orders: what a process of a drill is told to do, as one line of JSON from the drill to its fork server."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Role = Literal["work", "publish", "retain", "relay"]
Action = Literal["kill", "stop"]


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """Die (or stop) at the `nth` time that `window` is reached."""

    window: str
    nth: int = 1
    action: Action = "kill"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One process.

    number      names the order; answers carry it
    app         the application, as `settled run` takes it; "" is the sample application
    engine, store   where log and effects are
    folder      where the history goes
    changes     sections of the contract that the drill states differently: short leases, small groups
    messages    for `publish`: a file of messages to send
    rate        for `publish`: so many a second, without waiting for receipts in between; 0: as fast as they come
    drained     for `work`: stop when all is settled
    pause_s     for `work`: how long each handler takes longer than it does by itself
    clock_s     for `work`: how far the process's own wall clock (`time.time`) is put forward or back
    """

    number: int
    role: Role
    app: str
    engine: str
    store: str
    folder: str
    changes: dict[str, Any]
    death: Death | None = None
    messages: str = ""
    rate: float = 0.0
    drained: bool = False
    pause_s: float = 0.0
    clock_s: float = 0.0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """`status` is what waitpid said; none when the process has just been started."""

    number: int
    pid: int
    status: int | None = None


encode = msgspec.json.Encoder().encode
order_of = msgspec.json.Decoder(Order).decode
answer_of = msgspec.json.Decoder(Answer).decode
