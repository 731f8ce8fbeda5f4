"""What people are told of the groups on a log: what their members said on its board."""

from __future__ import annotations

from collections.abc import Iterable

from settled import clock
from settled.engine import GroupInfo, MemberInfo
from settled.engines.rabbitmq.board import Board, Note


def group(name: str, boards: Iterable[tuple[str, Board]]) -> GroupInfo:
    """`boards`: by topic. A member counts as there until it was silent for its lease, by the clock of this machine."""
    now_us = clock.wall_us()
    members: dict[str, MemberInfo] = {}
    committed, epochs = {}, {}
    for topic, board in boards:
        for number, mark in board.marks.items():
            epochs[topic, number] = mark.epoch
            if mark.frontier is not None:
                committed[topic, number] = mark.frontier
        for note in board.heard.values():
            left_s = min(note.lease_s, note.lease_s - (now_us - note.at_us) / 1e6)
            if left_s > 0:
                members[note.member] = _member(topic, note, left_s, members.get(note.member))
    found = sorted(members.values(), key=lambda member: member.member)
    return GroupInfo(group=name, members=found, committed=committed, epochs=epochs)


def _member(topic: str, note: Note, left_s: float, known: MemberInfo | None) -> MemberInfo:
    places = [] if known is None else known.partitions
    return MemberInfo(
        member=note.name,
        host=note.host,
        pid=note.pid,
        partitions=sorted([*places, *((topic, number) for number in note.owned)]),
        lease_left_s=left_s,
    )
