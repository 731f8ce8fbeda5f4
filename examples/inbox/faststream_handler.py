"""A FastStream subscriber that makes one invoice per event. Run here on FastStream's in-memory test broker."""

import asyncio

import billing
from faststream.confluent import KafkaBroker, TestKafkaBroker

broker = KafkaBroker()


@broker.subscriber("orders")
async def on_order(event: dict) -> None:
    billing.bill(event["id"], event["order"], event["euros"])


async def main() -> None:
    async with TestKafkaBroker(broker):
        await broker.publish({"id": "e1", "order": "o-1", "euros": 30}, "orders")
        await broker.publish({"id": "e2", "order": "o-2", "euros": 5}, "orders")
        await broker.publish({"id": "e1", "order": "o-1", "euros": 30}, "orders")  # delivered again


asyncio.run(main())
billing.show()
