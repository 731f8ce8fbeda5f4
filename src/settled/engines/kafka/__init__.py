"""The engine on Apache Kafka, with confluent-kafka (librdkafka). `kafka://host:port,...`, see `config`.

Reading order: `engine` (the port), `producer` and `records` (in), `consumer`, `handoff`, `lane`, `fetcher`,
`announcing`, `commits` and `marks` (out), `admin`, `topic_settings` and `groups`; `config` and `faults` are the edges.
"""

from settled.engines.kafka.engine import KafkaEngine

__all__ = ["KafkaEngine"]
