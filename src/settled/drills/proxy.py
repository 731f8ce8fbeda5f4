"""A proxy before a PostgreSQL server, in a thread of its own: it can be slow, be shut, and cut a connection after
COMMIT went to the server and before the answer came back, so that nobody knows whether it holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable
from urllib.parse import parse_qs, urlencode, urlsplit

COMMIT = b"COMMIT\0"
START_S = 10.0


class Proxy:
    """`url` leads to the same database by way of the proxy. Any thread may set `delay_s`, `cut_share` and call `shut`.

    delay_s     how long each packet waits, either way
    cut_share   the share of commits that are cut; `cuts` counts them
    """

    def __init__(self, url: str, chance: random.Random) -> None:
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        folder = query.pop("host", [""])[0]
        port = parts.port or int(query.pop("port", ["5432"])[0])
        self._unix = f"{folder}/.s.PGSQL.{port}" if folder.startswith("/") else ""
        self._address = (folder or parts.hostname or "127.0.0.1", port)
        self.delay_s, self.cut_share, self.cuts = 0.0, 0.0, 0
        self._chance, self._open = chance, True
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._port = 0
        self._thread = threading.Thread(target=self._run, name="drill-proxy", daemon=True)
        self._thread.start()
        self._ready.wait(START_S)
        user = parts.netloc.rpartition("@")[0]
        place = f"{user}@127.0.0.1:{self._port}" if user else f"127.0.0.1:{self._port}"
        kept = urlencode([(name, value) for name, values in query.items() for value in values])
        self.url = parts._replace(netloc=place, query=kept).geturl()

    def shut(self) -> None:
        """Drop all connections and take no more until `reopen`."""
        self._open = False
        self._call(self._drop)

    def reopen(self) -> None:
        self._open = True

    def close(self) -> None:
        self.shut()
        self._call(self._loop.stop)
        self._thread.join(START_S)

    def _call(self, function: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function)

    def _drop(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        try:
            self._loop.run_forever()
        finally:
            server.close()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._open:
            writer.transport.abort()
            return
        try:
            opened = asyncio.open_unix_connection(self._unix) if self._unix else asyncio.open_connection(*self._address)
            server_reader, server_writer = await opened
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, server_writer}
        down = asyncio.ensure_future(self._pass(server_reader, writer, None))
        with contextlib.suppress(asyncio.CancelledError):  # the proxy is being closed
            try:
                await self._pass(reader, server_writer, writer)
            finally:
                server_writer.close()
                await asyncio.wait([down], timeout=5.0)
                down.cancel()
                writer.close()
                self._writers -= {writer, server_writer}

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: asyncio.StreamWriter | None
    ) -> None:
        """Pass bytes on. `client` is set on the way to the server: it is who loses the answer of a cut commit."""
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                cut = client is not None and COMMIT in data and self._chance.random() < self.cut_share
                if cut and client is not None:
                    self.cuts += 1
                    client.transport.abort()
                writer.write(data)
                await writer.drain()
                if cut:
                    return
