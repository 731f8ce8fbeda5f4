"""A gate before a PostgreSQL server: a proxy on a socket of its own that can be shut, and can cut a connection just
before or just after a message that holds certain bytes reaches the server."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from urllib.parse import parse_qs, urlsplit


class Gate:
    def __init__(self, server: str, folder: Path) -> None:
        parts = urlsplit(server)
        query = parse_qs(parts.query)
        port = parts.port or 5432
        if "host" in query:
            self._server: str | tuple[str, int] = f"{query['host'][0]}/.s.PGSQL.{port}"
        else:
            self._server = (parts.hostname or "127.0.0.1", port)
        self.url = parts._replace(
            netloc=parts.netloc.partition("@")[0] + "@", query=f"host={folder}&port=5432"
        ).geturl()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen(16)
        self._open = True
        self._cut: tuple[bytes, bool] | None = None
        self.cuts = 0
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def cut_at(self, message: bytes, *, delivered: bool) -> None:
        """Cut the next connection that sends `message`; `delivered`: the server gets it, its answer is lost."""
        self._cut = (message, delivered)

    def shut(self) -> None:
        self._open = False
        for pair in self._pairs:
            _end(*pair)

    def reopen(self) -> None:
        self._open = True

    def close(self) -> None:
        self.shut()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)
        for pair in self._pairs:
            for each in pair:
                each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if not self._open:
                client.close()
                continue
            local = isinstance(self._server, str)
            server = socket.socket(socket.AF_UNIX if local else socket.AF_INET)
            server.connect(self._server)
            pair = (client, server)
            self._pairs.append(pair)
            for target in (self._upward, self._downward):
                thread = threading.Thread(target=target, args=pair)
                thread.start()
                self._threads.append(thread)

    def _upward(self, client: socket.socket, server: socket.socket) -> None:
        while data := _received(client):
            cut = self._cut
            if cut is not None and cut[0] in data:
                self._cut = None
                self.cuts += 1
                _end(client)  # whatever the server answers finds nobody; it may have gone by itself
                if cut[1]:
                    with contextlib.suppress(OSError):
                        server.sendall(data)
                        server.shutdown(socket.SHUT_WR)
                    return
                break
            try:
                server.sendall(data)
            except OSError:
                break
        _end(client, server)

    def _downward(self, client: socket.socket, server: socket.socket) -> None:
        while data := _received(server):
            try:
                client.sendall(data)
            except OSError:
                continue
        _end(client, server)


def _received(source: socket.socket) -> bytes:
    try:
        return source.recv(1 << 16)
    except OSError:
        return b""


def _end(*sockets: socket.socket) -> None:
    for each in sockets:
        try:
            each.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue
