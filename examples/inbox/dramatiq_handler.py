"""A Dramatiq actor that makes one invoice per event. Run here on Dramatiq's StubBroker."""

import billing
import dramatiq
from dramatiq.brokers.stub import StubBroker

broker = StubBroker(middleware=[])
dramatiq.set_broker(broker)


@dramatiq.actor
def on_order(event_id: str, order_id: str, euros: int) -> None:
    billing.bill(event_id, order_id, euros)


worker = dramatiq.Worker(broker, worker_threads=2)
worker.start()
on_order.send("e1", "o-1", 30)
on_order.send("e2", "o-2", 5)
on_order.send("e1", "o-1", 30)  # delivered again
broker.join("default", fail_fast=True)
worker.join()
worker.stop()
broker.close()
billing.show()
