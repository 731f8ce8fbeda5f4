"""What a broker of the test cluster is told: three brokers that are controllers too, small, quick to notice a death.

Each listens four times on loopback: CLIENT (plain, also between brokers), PROXIED (plain, advertised at the port of a
proxy, so that clients can be cut off), LIMITED (SASL PLAIN, with a user that has no rights) and CONTROLLER.
"""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass

BROKERS = (1, 2, 3)
HOST = "127.0.0.1"
LIMITED_USER, LIMITED_PASSWORD = "limited", "limited-secret"
ADMIN_USER, ADMIN_PASSWORD = "admin", "admin-secret"
SESSION_MS = 3000  # a member of a group that is silent for so long is out
BROKER_SESSION_MS = 4000  # so is a broker
HEAP = ("-Xms96m", "-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k", "-XX:-UsePerfData")

SETTINGS = f"""\
process.roles=broker,controller
controller.listener.names=CONTROLLER
inter.broker.listener.name=CLIENT
listener.security.protocol.map=CLIENT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT,LIMITED:SASL_PLAINTEXT
listener.name.limited.sasl.enabled.mechanisms=PLAIN
listener.name.limited.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_{LIMITED_USER}="{LIMITED_PASSWORD}" user_{ADMIN_USER}="{ADMIN_PASSWORD}";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:{ADMIN_USER}
allow.everyone.if.no.acl.found=false
auto.create.topics.enable=false
unclean.leader.election.enable=false
default.replication.factor=3
min.insync.replicas=2
num.partitions=3
offsets.topic.replication.factor=3
offsets.topic.num.partitions=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
transaction.state.log.num.partitions=3
share.coordinator.state.topic.replication.factor=3
share.coordinator.state.topic.min.isr=2
share.coordinator.state.topic.num.partitions=3
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=1000
group.consumer.session.timeout.ms={SESSION_MS}
group.consumer.min.heartbeat.interval.ms=100
group.consumer.heartbeat.interval.ms=500
broker.session.timeout.ms={BROKER_SESSION_MS}
broker.heartbeat.interval.ms=500
controller.quorum.election.backoff.max.ms=300
controlled.shutdown.enable=true
log.retention.check.interval.ms=1000
log.cleaner.backoff.ms=500
log.cleaner.threads=1
log.cleaner.dedupe.buffer.size=4194304
log.segment.delete.delay.ms=1000
log.index.size.max.bytes=1048576
num.network.threads=2
num.io.threads=4
num.recovery.threads.per.data.dir=1
background.threads=2
group.coordinator.threads=1
share.coordinator.threads=1
replica.fetch.wait.max.ms=500
metadata.log.max.snapshot.interval.ms=3600000
"""

LOGGING = """\
Configuration:
  status: "OFF"
  Appenders:
    Console:
      name: OUT
      PatternLayout: {pattern: "%d{ISO8601} %p %c{1}: %m%n"}
  Loggers:
    Root: {level: WARN, AppenderRef: {ref: OUT}}
"""


@dataclass(frozen=True, slots=True)
class Ports:
    """The four ports of a broker; `proxy` is where PROXIED is advertised."""

    client: int
    proxied: int
    limited: int
    controller: int
    proxy: int


def free_ports() -> dict[int, Ports]:
    """Five ports for each broker that nobody listens on. They lie below those that systems give to clients, so that a
    broker that was stopped finds them free again."""
    found: list[int] = []
    chance = random.Random()
    while len(found) < 5 * len(BROKERS):
        port = chance.randrange(15000, 32000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return {broker: Ports(*found[at * 5 : at * 5 + 5]) for at, broker in enumerate(BROKERS)}


def properties(broker: int, ports: dict[int, Ports], storage: str) -> str:
    """The properties file of a broker that keeps its records in the folder `storage`."""
    own = ports[broker]
    voters = ",".join(f"{each}@{HOST}:{port.controller}" for each, port in ports.items())
    listeners = f"CLIENT://{HOST}:{own.client},PROXIED://{HOST}:{own.proxied},LIMITED://{HOST}:{own.limited}"
    advertised = f"CLIENT://{HOST}:{own.client},PROXIED://{HOST}:{own.proxy},LIMITED://{HOST}:{own.limited}"
    return SETTINGS + (
        f"node.id={broker}\nlog.dirs={storage}\ncontroller.quorum.voters={voters}\n"
        f"listeners={listeners},CONTROLLER://{HOST}:{own.controller}\nadvertised.listeners={advertised}\n"
    )
