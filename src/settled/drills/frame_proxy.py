"""A proxy before a node that counts the frames of AMQP, and cuts a connection at the one that it was told: before the
frame, or in the middle of it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec

from settled.drills.proxy import Proxy

HEAD, END = 7, 1  # type, channel and size before the payload; a last byte after it
GREETING = b"AMQP"  # the first eight bytes of a client are no frame

Way = Literal["up", "down"]


class Cut(msgspec.Struct, frozen=True):
    """Where: at the `frame`-th frame that the client sends (up) or gets (down); `within` it, or before it."""

    frame: int
    way: Way
    within: bool


class FrameProxy(Proxy):
    """Passes whole frames on."""

    def __init__(self, target: tuple[str, int], chance: random.Random) -> None:
        self._plan: Cut | None = None
        self._done = threading.Event()
        super().__init__(target, chance)

    @property
    def url(self) -> str:
        return f"rabbitmq://guest:guest@127.0.0.1:{self.port}/"

    def cut(self, plan: Cut) -> None:
        """Drop all connections, and cut the next one at this frame."""
        self._done.clear()

        def arm() -> None:
            self._plan = plan
            self._drop()

        self._call(arm)

    def was_cut(self) -> bool:
        return self._done.is_set()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: asyncio.StreamWriter | None
    ) -> None:
        way: Way = "down" if client is None else "up"
        plan = self._plan if self._plan is not None and self._plan.way == way else None
        if plan is not None:
            self._plan = None
        number = 0
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                frame = await _frame(reader)
                await self._flows.wait()
                number += not frame.startswith(GREETING)
                if plan is not None and number == plan.frame:
                    if plan.within:
                        writer.write(frame[: len(frame) // 2])
                        await writer.drain()
                    self._end(writer, client, plan)
                    return
                writer.write(frame)
                await writer.drain()

    def _end(self, writer: asyncio.StreamWriter, client: asyncio.StreamWriter | None, plan: Cut) -> None:
        """In good order where the half of a frame is to arrive, else as if the cable had been pulled."""
        self.cuts += 1
        if plan.within:
            writer.close()
        else:
            writer.transport.abort()
        if client is not None:
            client.transport.abort()
        self._done.set()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(HEAD)
    if head.startswith(GREETING):
        return head + await reader.readexactly(1)
    size = int.from_bytes(head[3:])
    return head + await reader.readexactly(size + END)


@contextmanager
def framed(target: tuple[str, int], chance: random.Random) -> Iterator[FrameProxy]:
    proxy = FrameProxy(target, chance)
    try:
        yield proxy
    finally:
        proxy.close()
