"""What a group that is to be forgotten leaves behind, for people to read before they decide."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from settled.engine import Engine, GroupInfo
from settled.errors import Unsupported
from settled.forgetting import Forgetting


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """Of a topic. `behind`: records between what the group committed and the end, about; none: no position is known."""

    topic: str
    behind: int | None


def look(engine: Engine, group: str, topics: Collection[str] | None) -> list[Left]:
    """What is known of the group, of the named topics or of all. Changes nothing."""
    found = next(iter(engine.groups(group)), None) or GroupInfo(group=group, members=[], committed={}, epochs={})
    known = {topic for topic, _ in (*found.committed, *found.epochs)}
    infos = {info.spec.name: info for info in engine.topics(known if topics is None else topics)}
    left = []
    for name in sorted(known if topics is None else topics):
        told = {number: offset for (topic, number), offset in found.committed.items() if topic == name}
        parts = infos[name].partitions if name in infos else []
        behind = sum(part.end - max(part.begin, told.get(part.partition, 0)) for part in parts)
        left.append(Left(topic=name, behind=behind if told else None))
    return left


def forget(engine: Engine, group: str, topics: Collection[str] | None, *, force: bool) -> dict[str, int]:
    """As `Forgetting.forget_group`."""
    if not isinstance(engine, Forgetting):
        raise Unsupported(f"{engine.name} does not forget groups", field="engine", hint="use the engine's own tools")
    return engine.forget_group(group, topics, force=force)
