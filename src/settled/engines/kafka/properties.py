"""What is known of librdkafka's properties: which are secret, which are settled's and why, which side they are of."""

from __future__ import annotations

_CONTRACT = "it follows from the contract"


def _owned(why: str, remedy: str, *names: str) -> dict[str, tuple[str, str]]:
    return {name: (f"this belongs to settled: {why}", remedy) for name in names}


# Property -> why it cannot be stated, and what to state instead.
OWNED: dict[str, tuple[str, str]] = {
    **_owned(
        "progress is stored with the effects and is never committed ahead of them",
        "leave it out",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "auto.commit.enable",
        "auto.commit.interval.ms",
        "offset.store.method",
    ),
    **_owned(
        "where a group begins is the contract's word, and a lost position is told as a gap",
        "set transport.start and retention.on_gap in the contract",
        "auto.offset.reset",
    ),
    **_owned(
        "a record counts as accepted only at the contract's durability point",
        "set producer.durability in the contract; the topic's replicas and min.insync.replicas do the rest",
        "acks",
        "request.required.acks",
        "enable.idempotence",
        "enable.gapless.guarantee",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "transactional.id",
        "transaction.timeout.ms",
    ),
    **_owned(
        "keys stay where they are on every engine",
        "leave it out: it is Kafka's own default, murmur2",
        "partitioner",
        "partitioner_cb",
        "sticky.partitioning.linger.ms",
    ),
    **_owned("records of an aborted transaction were never published", "leave it out", "isolation.level"),
    **_owned(
        "ownership of partitions carries the fencing",
        "set delivery.group and delivery.lease in the contract",
        "group.id",
        "group.protocol",
        "group.protocol.type",
        "group.remote.assignor",
        "partition.assignment.strategy",
        "session.timeout.ms",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
    ),
    **_owned(
        _CONTRACT,
        "set producer.batch and producer.compression in the contract",
        "linger.ms",
        "queue.buffering.max.ms",
        "batch.size",
        "batch.num.messages",
        "compression.codec",
        "compression.type",
        "queue.buffering.max.messages",
        "queue.buffering.max.kbytes",
        "delivery.report.only.error",
    ),
    **_owned(
        _CONTRACT,
        "set delivery.in_flight in the contract",
        "queued.min.messages",
        "queued.max.messages.kbytes",
    ),
    **_owned("topics are made from the contract, never by chance", "leave it out", "allow.auto.create.topics"),
    **_owned("damaged bytes are never served", "leave it out", "check.crcs"),
    **_owned(
        "the addresses stand before the question mark",
        "write kafka://host:port,host:port",
        "bootstrap.servers",
        "metadata.broker.list",
    ),
    **_owned("settings do not load code", "leave it out", "plugin.library.paths"),
    **_owned("log lines go to the logger settled.kafka", "leave it out", "log.queue", "logger", "log_cb"),
    **_owned("the runtime reads them itself", "leave it out", "enable.partition.eof"),
}

CONSUMER = frozenset(
    {
        "check.crcs",
        "client.rack",
        "coordinator.query.interval.ms",
        "fetch.error.backoff.ms",
        "fetch.max.bytes",
        "fetch.message.max.bytes",
        "fetch.min.bytes",
        "fetch.queue.backoff.ms",
        "fetch.wait.max.ms",
        "group.instance.id",
        "max.partition.fetch.bytes",
        "receive.message.max.bytes",
        "topic.blacklist",
    }
)
PRODUCER = frozenset(
    {
        "compression.level",
        "delivery.timeout.ms",
        "message.send.max.retries",
        "message.timeout.ms",
        "queue.buffering.backpressure.threshold",
        "request.timeout.ms",
        "retries",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
    }
)

# What other clients call things.
HINTS = {
    "sasl.jaas.config": "that is Java's: state sasl.username and sasl.password",
    "ssl.truststore.location": "that is Java's: state ssl.ca.location, a file of PEM certificates",
    "ssl.truststore.password": "that is Java's: state ssl.ca.location, a file of PEM certificates",
    "ssl.truststore.type": "that is Java's: state ssl.ca.location, a file of PEM certificates",
    "ssl.keystore.type": "leave it out: ssl.keystore.location takes a file of PKCS #12",
    "key.serializer": "leave it out: keys are bytes",
    "value.serializer": "leave it out: values are bytes",
    "key.deserializer": "leave it out: keys are bytes",
    "value.deserializer": "leave it out: values are bytes",
}

# Of what belongs to TLS and SASL only these may be shown: a new or misspelt property is taken for a secret.
_SHOWN = frozenset(
    {
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.oauthbearer.method",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.scope",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.keystore.location",
        "ssl.crl.location",
        "ssl.cipher.suites",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
    }
)
_SECRET = ("password", "passwd", "secret", "token", "passphrase", "credential", "jaas")
_UNDERSCORES = {"log.level": "log_level"}


def is_secret(name: str) -> bool:
    """Whether the value must never be shown."""
    plain = name.lower()
    if plain in _SHOWN:
        return False
    return plain.startswith(("sasl", "ssl")) or any(part in plain for part in _SECRET)


def named(name: str) -> str:
    """The property whose dots were written as underscores. Callbacks have no dots."""
    if name.endswith("_cb"):
        return name
    dotted = name.replace("_", ".")
    return _UNDERSCORES.get(dotted, dotted)
