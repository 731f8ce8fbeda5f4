"""The engine on Apache Kafka, with confluent-kafka (librdkafka). `kafka://host:port,...`, see `config`."""
