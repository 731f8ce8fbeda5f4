"""Drills by name that only a Kafka cluster has: brokers that die, answers that are lost, groups that meet anew, clients
that are cut off. Each takes a world with a cluster that it may harm; see `named` for the form."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence

from settled.drills import kafka
from settled.drills.disturbed import OWN_S, cut_off, look, working
from settled.drills.history import Event
from settled.drills.kafka_proxy import proxied
from settled.drills.named import BUSY_S, NamedDrill, waited
from settled.drills.rounds import Round
from settled.drills.world import World
from settled.errors import Refused
from settled.testing.kafka_cluster import Cluster

RATE = 2000  # records a second while brokers die
BEFORE_S, AFTER_S = 1.0, 1.0  # of such load before a broker dies, and after it is known that another leads
STORM_RECORDS = 100  # for each restart of a member
MEMBER_S = 2.0  # how long a member of the storm lives at most


def leader_kill(world: World, times: int, chance: random.Random) -> tuple[int, str]:
    """The leader of a partition is killed (SIGKILL) under 2,000 records a second, and comes back."""
    cluster = _cluster(world)
    partitions = world.contract.transport.partitions
    with working(world, 2):
        for number in range(times):
            partition = number % partitions
            stream = world.stream(world.supply.take(_load()), RATE)
            waited(lambda stream=stream: world.accepted_by(stream) > RATE * BEFORE_S, OWN_S)  # type: ignore[misc]
            dead = cluster.leader(world.topic, partition)
            led = [each for each in range(partitions) if cluster.leader(world.topic, each) == dead]
            for each in led:
                world.writer.write(Event(what="death", window="leader-kill", partition=each))
            cluster.kill(dead)
            world.finish(stream)
            cluster.start(dead)
            cluster.wait_ready()
            waited(world.settled_if_reachable, OWN_S)
            look(world)
    return times, f"{RATE} records a second meanwhile; {_stored_once(world)}"


def broker_rolling_restart(world: World, times: int, chance: random.Random) -> tuple[int, str]:
    """The brokers are stopped and started again, one after the other, under 2,000 records a second."""
    cluster = _cluster(world)
    brokers = sorted(cluster.processes())
    with working(world, 2):
        for number in range(times):
            stream = world.stream(world.supply.take(_load()), RATE)
            broker = brokers[number % len(brokers)]
            cluster.stop(broker)
            cluster.start(broker)
            cluster.wait_ready()
            world.finish(stream)
            waited(world.settled_if_reachable, OWN_S)
            look(world)
    return times, f"{RATE} records a second meanwhile; {_stored_once(world)}"


def lost_ack(world: World, times: int, chance: random.Random) -> tuple[int, str]:
    """The answers to produce requests are cut on their way; the producer sends again, and nothing is stored twice."""
    with proxied(_cluster(world), chance) as proxies, working(world, 1):
        world.publish_url = kafka.address(proxies.bootstrap)
        proxies.cut_answers(0.3)
        while proxies.cuts < times:
            world.publish(world.supply.take(50))
        proxies.cut_answers(0.0)
        world.publish(world.supply.take(50))
        world.publish_url = ""
        cuts = proxies.cuts
    return cuts, f"answers lost; {_stored_once(world)}"


def rebalance_storm(world: World, times: int, chance: random.Random) -> tuple[int, str]:
    """A member is restarted every 2 s or sooner, killed and stopped in turn, while 100 records come each time."""
    killed = 0
    with working(world, 1):
        member = world.start(pause_s=BUSY_S)
        for number in range(times):
            end = time.monotonic() + chance.uniform(MEMBER_S / 2, MEMBER_S)
            world.publish(world.supply.take(STORM_RECORDS))
            while member.alive and time.monotonic() < end:
                world.crew.wait([member], max(0.0, end - time.monotonic()))
            if number % 2:
                world.writer.write(Event(what="death", window="rebalance-storm", pid=member.pid))
                world.crew.end(member)
                killed += 1
            else:
                world.crew.terminate(member)
            old, member = member, world.start(pause_s=BUSY_S)
            if not world.crew.wait_ended(old, OWN_S):
                world.tell_drained(False, f"{old.pid} did not end on SIGTERM")
            look(world)
        world.stop([member])
    return times, f"{killed} of the restarts were kills; {_stored_once(world)}"


def partition_cut(world: World, times: int, chance: random.Random) -> tuple[int, str]:
    """A worker is cut off from all brokers beyond its lease, another takes over, then the first is let back in."""
    with proxied(_cluster(world), chance) as proxies:
        note = cut_off(world, times, proxies, kafka.address(proxies.bootstrap))
    Round(world, "random", 0, chance).settle()
    return times, note


def _load() -> int:
    """Records enough for RATE from before a broker dies until another leads."""
    return round(RATE * (BEFORE_S + AFTER_S) + RATE)


def _stored_once(world: World) -> str:
    """A producer stores nothing twice, however often it sends it again: said in the history, and in words. What one
    gave up and another sent anew may stand there twice."""
    counts = Counter(world.stored())
    twice = sum(count - 1 for count in counts.values())
    world.writer.write(Event(what="bound", note="copies of a record in the log", n=twice, offset=world.resent))
    return f"{len(counts)} records in the log, {twice} of them twice"


def require_possible(names: Sequence[str], engine: str, cluster: Cluster | None) -> None:
    """Raises Refused for drills that may not be done to these brokers."""
    hint = f"--engine {kafka.OWN} starts three brokers (Java and Maven are needed)"
    if not kafka.is_kafka(engine):
        return
    asked = [name for name in names if name in ON_KAFKA]
    harmful = [name for name in asked if name in KILLS_BROKERS and (cluster is None or not cluster.own)]
    if harmful:
        raise Refused(f"{', '.join(harmful)} stops brokers, and does that only to its own", hint=hint)
    proxied = [name for name in asked if name in NEEDS_PROXIES and cluster is None]
    if proxied:
        raise Refused(f"{', '.join(proxied)} needs brokers that are reached by way of proxies too", hint=hint)


def _cluster(world: World) -> Cluster:
    assert world.cluster is not None, "see require_possible"
    return world.cluster


ON_KAFKA: dict[str, NamedDrill] = {
    "leader-kill": leader_kill,
    "broker-rolling-restart": broker_rolling_restart,
    "lost-ack": lost_ack,
    "rebalance-storm": rebalance_storm,
    "partition-cut": partition_cut,
}
KILLS_BROKERS = frozenset({"leader-kill", "broker-rolling-restart"})
NEEDS_PROXIES = frozenset({"lost-ack", "partition-cut"})
