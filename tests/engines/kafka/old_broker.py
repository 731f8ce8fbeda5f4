"""A broker of the year 2017 as far as a client can see before it gives up: it says which requests it knows, and who it
is. Real ones of that age do not run beside today's.
"""

from __future__ import annotations

import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

API_VERSIONS, METADATA = 18, 3
# (request, lowest, highest version) as Apache Kafka 0.11 answers
KNOWN = [
    (0, 0, 3),
    (1, 0, 5),
    (2, 0, 2),
    (3, 0, 4),
    (8, 0, 3),
    (9, 0, 3),
    (10, 0, 1),
    (18, 0, 1),
    (19, 0, 2),
    (32, 0, 0),
]


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


class _Connection(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while len(head := self.rfile.read(4)) == 4:
            request = self.rfile.read(struct.unpack(">i", head)[0])
            kind, version, correlation = struct.unpack(">hhi", request[:8])
            body = self._answer(kind, version)
            if body is None:
                return
            answer = struct.pack(">i", correlation) + body
            self.wfile.write(struct.pack(">i", len(answer)) + answer)

    def _answer(self, kind: int, version: int) -> bytes | None:
        if kind == API_VERSIONS:
            error = 0 if version == 0 else 35  # unsupported version: the client asks again in the oldest form
            return struct.pack(">hi", error, len(KNOWN)) + b"".join(struct.pack(">hhh", *each) for each in KNOWN)
        if kind == METADATA and version == 4:
            host, port = self.server.server_address[:2]
            broker = struct.pack(">i", 1) + _text(str(host)) + struct.pack(">ih", port, -1)
            return struct.pack(">ii", 0, 1) + broker + _text("old") + struct.pack(">ii", 1, 0)
        return None


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


@contextmanager
def old_broker() -> Iterator[str]:
    """Its host:port while the block runs."""
    with _Server(("127.0.0.1", 0), _Connection) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
