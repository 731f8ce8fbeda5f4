"""A proxy before a server, in a thread of its own: it can be slow, hold everything back, be shut, and cut a connection
after a request went to the server and before its answer came back, so that nobody knows whether it holds.
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

Spotter = Callable[[bytes], bool]
"""Is given what a connection sends, piece by piece; true when a request that may be cut has been sent to its end."""


def nothing() -> Spotter:
    """Nothing is ever cut."""
    return lambda data: False


def commits() -> Spotter:
    """Of a PostgreSQL connection: its commits."""
    return lambda data: COMMIT in data


class Proxy:
    """Listens on `port` of loopback (0: any) and passes on to a TCP address or a Unix socket. Any thread may set
    `delay_s` and `cut_share`, and call its methods. Close it.

    delay_s     how long each packet waits, either way
    cut_share   the share of the requests found by `spotter` that lose their answer; `cuts` counts them
    """

    def __init__(
        self,
        target: tuple[str, int] | str,
        chance: random.Random,
        *,
        port: int = 0,
        spotter: Callable[[], Spotter] = nothing,
    ) -> None:
        self._target = target
        self.delay_s, self.cut_share, self.cuts = 0.0, 0.0, 0
        self._chance, self._spotter, self._open = chance, spotter, True
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._flows = asyncio.Event()
        self._flows.set()
        self._ready = threading.Event()
        self._failure: OSError | None = None
        self.port = port
        self._thread = threading.Thread(target=self._run, name="drill-proxy", daemon=True)
        self._thread.start()
        self._ready.wait(START_S)
        if self._failure is not None:
            raise self._failure

    def shut(self) -> None:
        """Drop all connections and take no more until `reopen`."""
        self._open = False
        self._call(self._drop)

    def reopen(self) -> None:
        self._open = True

    def hold(self) -> None:
        """Pass nothing on, either way, until `release`, as if the cable were pulled; what is sent comes late."""
        self._call(self._flows.clear)

    def release(self) -> None:
        self._call(self._flows.set)

    def close(self) -> None:
        self.shut()
        self._call(self._loop.stop)
        self._thread.join(START_S)

    def _call(self, function: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function)

    def _drop(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", self.port))
        except OSError as failure:
            self._failure = failure
            self._loop.close()
            self._ready.set()
            return
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        try:
            self._loop.run_forever()
        finally:
            for listening in server.sockets:
                self._loop.remove_reader(listening.fileno())  # no more are taken,
            self._turn()  # and one that was just taken sees that the proxy is shut
            server.close()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._drop()
            self._turn()  # what was dropped is closed
            self._loop.close()

    def _turn(self) -> None:
        for _ in range(5):
            self._loop.run_until_complete(asyncio.sleep(0))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._open:
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            if isinstance(self._target, str):
                server_reader, server_writer = await asyncio.open_unix_connection(self._target)
            else:
                server_reader, server_writer = await asyncio.open_connection(*self._target)
        except OSError:
            self._writers.discard(writer)
            writer.transport.abort()
            return
        self._writers.add(server_writer)
        down = asyncio.ensure_future(self._pass(server_reader, writer, None))
        with contextlib.suppress(asyncio.CancelledError):  # the proxy is being closed
            try:
                await self._pass(reader, server_writer, writer)
            finally:
                server_writer.close()
                await asyncio.wait([down], timeout=5.0)
                down.cancel()
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()  # what the client has not taken yet
                    await server_writer.wait_closed()
                self._writers -= {writer, server_writer}

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: asyncio.StreamWriter | None
    ) -> None:
        """Pass bytes on. `client` is set on the way to the server: it is who loses the answer of a cut request."""
        spot = self._spotter()
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._flows.wait()
                cut = client is not None and spot(data) and self._chance.random() < self.cut_share
                if cut and client is not None:
                    self.cuts += 1
                    client.transport.abort()
                writer.write(data)
                await writer.drain()
                if cut:
                    return


class PostgresProxy(Proxy):
    """A proxy before a PostgreSQL server: `url` leads to the same database by way of it; what it cuts are commits."""

    def __init__(self, url: str, chance: random.Random) -> None:
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        folder = query.pop("host", [""])[0]
        port = parts.port or int(query.pop("port", ["5432"])[0])
        unix = f"{folder}/.s.PGSQL.{port}" if folder.startswith("/") else ""
        super().__init__(unix or (folder or parts.hostname or "127.0.0.1", port), chance, spotter=commits)
        user = parts.netloc.rpartition("@")[0]
        place = f"{user}@127.0.0.1:{self.port}" if user else f"127.0.0.1:{self.port}"
        kept = urlencode([(name, value) for name, values in query.items() for value in values])
        self.url = parts._replace(netloc=place, query=kept).geturl()
