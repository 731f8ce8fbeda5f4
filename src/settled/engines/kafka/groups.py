"""Groups as the brokers see them: members, what each owns, the committed positions."""

from __future__ import annotations

import confluent_kafka
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions
from confluent_kafka.admin import MemberDescription

from settled.engine import GroupInfo, MemberInfo, Partition
from settled.engines.kafka import faults, marks
from settled.engines.kafka.calls import Cluster
from settled.record import checked_name


def described(cluster: Cluster, group: str | None) -> list[GroupInfo]:
    """All groups, or the one named, in order of their names."""
    names = _names(cluster) if group is None else [checked_name("group", group)]
    if not names:
        return []
    what = "looking at groups"
    found = cluster.read(cluster.client.describe_consumer_groups, names, what)
    told: list[GroupInfo] = []
    for name, description in sorted(found.items()):
        if isinstance(description, confluent_kafka.KafkaException):
            if faults.is_absent(description):
                continue
            raise cluster.fault(description, what, group=name)
        committed, epochs = _committed(cluster, name)
        members = [_member(each) for each in description.members]
        if description.state != ConsumerGroupState.DEAD and (members or committed):
            epochs = {place: 0 for member in members for place in member.partitions} | epochs
            told.append(GroupInfo(group=name, members=members, committed=committed, epochs=epochs))
    return told


def _names(cluster: Cluster) -> list[str]:
    listed = cluster.one(cluster.client.list_consumer_groups, "listing groups")
    for error in listed.errors or ():
        raise cluster.fault(error, "listing groups")
    return [each.group_id for each in listed.valid or ()]


def _member(found: MemberDescription) -> MemberInfo:
    places = found.assignment.topic_partitions if found.assignment else []
    return MemberInfo(
        member=found.client_id,
        host=found.host.lstrip("/"),
        pid=None,
        partitions=sorted((place.topic, place.partition) for place in places),
        lease_left_s=None,
    )


def _committed(cluster: Cluster, group: str) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """Committed positions, and the epochs that were noted with them."""
    what = f"reading the positions of group {group!r}"
    asked = [ConsumerGroupTopicPartitions(group)]
    committed: dict[Partition, int] = {}
    epochs: dict[Partition, int] = {}
    for found in cluster.read(cluster.client.list_consumer_group_offsets, asked, what).values():
        if isinstance(found, confluent_kafka.KafkaException):
            if faults.is_absent(found):
                continue
            raise cluster.fault(found, what, group=group)
        for place in found.topic_partitions or ():
            if place.error is None and place.offset >= 0:
                committed[place.topic, place.partition] = place.offset
                epochs[place.topic, place.partition] = marks.read(place.metadata).epoch
    return committed, epochs
