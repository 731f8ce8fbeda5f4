"""A member's notes on the board of its group, and those of the others, for as long as a connection lives. What a note
says is certain once it was read back: then all that was written before it has been read, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import pika
from pika.channel import Channel

from settled import clock
from settled.engines.rabbitmq.board import BOARD, Board, Note, board_of, note_of
from settled.engines.rabbitmq.looking import Following

CLOCKS_S = 30.0  # so much the clocks of members may differ


class Notices:
    """On the connection's thread.

    tell     makes the note that says all that is true of this member now, under the number given
    own      is called with each note of this member's that is read back, before the board takes it
    heard    is called after the board took a note
    lost     is called when the broker ends the channels, and the connection lives
    """

    def __init__(
        self,
        topic: str,
        group: str,
        member: str,
        tell: Callable[[int], Note],
        own: Callable[[Note], None],
        heard: Callable[[], None],
        lost: Callable[[Exception], None],
    ) -> None:
        self._stream, self._member = board_of(topic, group), member
        self._tell, self._own, self._heard, self._lost = tell, own, heard, lost
        self.number = 0  # of the last note
        self.said_at = 0.0
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self.down()

    def down(self) -> None:
        self.board = Board()
        self.heard_at: dict[str, float] = {}
        self._channel: Channel | None = None
        self._read = 0
        self._first = self.number + 1  # notes of earlier connections say nothing certain
        self._waiting.clear()

    @property
    def ready(self) -> bool:
        """Whether all is read that others said before this connection."""
        return self._read >= self._first

    def up(self, connection: Any) -> None:

        def opened(channel: Channel) -> None:
            channel.add_on_close_callback(lambda _, error: self._closed(connection, error))
            channel.queue_declare(self._stream, durable=True, arguments=BOARD, callback=lambda _: made(channel))

        def made(channel: Channel) -> None:
            self._channel = channel
            Following(connection, self._stream, "first", self._take, self._lost)
            self.say()

        connection.channel(on_open_callback=opened)

    def say(self, then: Callable[[], None] | None = None) -> int:
        """Write a note; `then` is called when it was read back. The number of the note."""
        channel = self._channel
        if channel is None or not channel.is_open:
            return self.number + 1
        self.number += 1
        self.said_at = time.monotonic()
        if then is not None:
            self._waiting.append((self.number, then))
        body = msgspec.json.encode(self._tell(self.number))
        channel.basic_publish("", self._stream, body, pika.BasicProperties(delivery_mode=2))
        return self.number

    def silent(self, now: float) -> list[str]:
        """Members that were silent for longer than their lease; forgotten with this."""
        found = [
            member
            for member, note in self.board.heard.items()
            if member != self._member and now - self.heard_at[member] > note.lease_s
        ]
        for member in found:
            self.board.forget(member)
        return found

    def excuse(self, now: float) -> None:
        """This thread stood still: it does not know who was silent meanwhile."""
        self.heard_at = dict.fromkeys(self.heard_at, now)

    def _closed(self, connection: Any, error: Exception) -> None:
        if connection.is_open:
            self._lost(error)

    def _take(self, body: bytes, offset: int) -> None:
        note = note_of(body)
        if note is None:
            return
        mine = note.member == self._member and note.number >= self._first
        if mine:
            self._read = note.number
            self._own(note)
        self.board.take(note, offset)
        if not self.ready and clock.wall_us() - note.at_us > (note.lease_s + CLOCKS_S) * 1e6:
            self.board.forget(note.member)  # long silent, whatever its clock says
        self.heard_at[note.member] = time.monotonic()
        if mine:
            due = [then for number, then in self._waiting if number <= note.number]
            self._waiting = [each for each in self._waiting if each[0] > note.number]
            for then in due:
                then()
        if self.ready:
            self._heard()
