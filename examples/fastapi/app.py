"""FastAPI and SQLAlchemy: an order and its event are one commit of an AsyncSession, the answer carries a token, and the
page waits for the effect by it. Nothing here but the consumer is settled's runtime.

The session keeps shop.db by Python's own library, so the relay runs in a process of its own. Run it twice.
"""

import asyncio
import subprocess
import sys

from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

import settled
from settled import App

STORE = "sqlite:///shop.db"
settled.inbox.migrate(STORE)  # or once, at deployment: settled store migrate --store sqlite:///shop.db
database = create_async_engine("sqlite+aiosqlite:///shop.db")
packing = App(topic="orders", group="packing")
api = FastAPI()


@packing.setup
def tables(tx):
    tx.execute("CREATE TABLE IF NOT EXISTS parcel (order_id TEXT)")


@packing.handler
def pack(tx, record):
    tx.execute("INSERT INTO parcel VALUES (?)", (record.key.decode(),))


@api.post("/orders/{number}")
async def take_order(number: str, sku: str) -> dict[str, str]:
    try:
        async with AsyncSession(database) as session, session.begin():
            await session.execute(text("INSERT INTO shop_order VALUES (:number, :sku)"), {"number": number, "sku": sku})
            await settled.outbox.publish(session, {"sku": sku}, topic="orders", key=number, id=f"ordered-{number}")
    except IntegrityError:
        pass  # taken before: the answer is the same
    return {"seen": settled.outbox.token(f"ordered-{number}", topic="orders")}


@api.get("/orders/{number}")
async def state(number: str, seen: str) -> dict[str, str]:
    found = await asyncio.to_thread(packing.wait, seen, 0.2)
    return {number: "packed" if found.effect else "taken"}


async def prepared() -> None:
    async with database.begin() as connection:
        await connection.execute(text("CREATE TABLE IF NOT EXISTS shop_order (id TEXT PRIMARY KEY, sku TEXT)"))


async def relayed() -> None:
    command = [sys.executable, "-m", "settled", "outbox", "relay", "--drain", "--store", STORE]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)


async def main() -> None:
    await prepared()
    async with AsyncClient(transport=ASGITransport(app=api), base_url="http://shop") as client:
        seen = (await client.post("/orders/o-1?sku=lamp")).json()["seen"]
        await relayed()  # a process of its own does this all the time
        await asyncio.to_thread(packing.drain)
        print((await client.get(f"/orders/o-1?seen={seen}")).json())
    await database.dispose()


if __name__ == "__main__":
    with packing:
        packing.engine.topics()  # opened: the topic is there
        asyncio.run(main())
