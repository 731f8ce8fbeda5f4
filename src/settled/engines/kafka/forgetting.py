"""Forgetting a group: its positions go. The brokers' retention waits for no group in any case."""

from __future__ import annotations

from collections.abc import Collection

import confluent_kafka
from confluent_kafka import KafkaError

from settled.engines.kafka import groups
from settled.engines.kafka.calls import Cluster
from settled.errors import Unsupported
from settled.forgetting import no_group, still_at_work


def forget(cluster: Cluster, group: str, topics: Collection[str] | None) -> dict[str, int]:
    """As `Forgetting.forget_group`; the client removes a group as a whole."""
    found = groups.described(cluster, group)
    known = {topic for info in found for topic, _ in (*info.committed, *info.epochs)}
    chosen = known if topics is None else set(topics)
    for name in sorted(chosen - known):
        raise no_group(group, name, known)
    if not chosen:
        raise no_group(group, "", known)
    members = [member.member for info in found for member in info.members]
    if members:
        raise still_at_work(group, sorted(chosen)[0], members)
    if chosen < known:
        raise Unsupported(
            f"group {group!r} has positions of other topics, too ({', '.join(sorted(known - chosen))}): the client "
            "removes groups as a whole",
            field="topic",
            hint="leave --topic out, or use kafka-consumer-groups.sh --delete-offsets",
        )
    what = f"forgetting group {group!r}"
    for error in cluster.all(cluster.client.delete_consumer_groups, [group], what).values():
        if isinstance(error, confluent_kafka.KafkaException):
            if error.args[0].code() == KafkaError.NON_EMPTY_GROUP:
                raise still_at_work(group, sorted(chosen)[0], ["one that has just joined"])
            raise cluster.fault(error, what, group=group)
    return dict.fromkeys(sorted(chosen), 0)
