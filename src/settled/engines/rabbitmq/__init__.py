"""The engine on RabbitMQ, with pika. `rabbitmq://user:password@host:port,.../vhost`, see `settings`.

Reading order: `engine` (the port), `topology` (queues and exchanges), `producer` and `records` (in), `consumer`,
`handoff` and `slot` (out); `connection`, `settings` and `faults` are the edges.
"""

from settled.engines.rabbitmq.engine import RabbitEngine

__all__ = ["RabbitEngine"]
