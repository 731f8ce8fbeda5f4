"""Proxies before the three brokers of a test cluster: a client that begins at `bootstrap` can be cut off from all of
them, and can lose the answers of its produce requests."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from settled.drills.proxy import Proxy, Spotter
from settled.testing.kafka_cluster import Cluster

PRODUCE = 0  # the api key that stands first in a produce request, after four bytes of length


class Proxies:
    """All brokers at once. Any thread."""

    def __init__(self, bootstrap: str, each: list[Proxy]) -> None:
        self.bootstrap, self._each = bootstrap, each

    @property
    def cuts(self) -> int:
        """How many produce requests have lost their answer."""
        return sum(proxy.cuts for proxy in self._each)

    def cut_answers(self, share: float) -> None:
        """From now on so many of the produce requests lose their answer, and their connection."""
        for proxy in self._each:
            proxy.cut_share = share

    def shut(self) -> None:
        """Drop all connections and take no more until `reopen`."""
        for proxy in self._each:
            proxy.shut()

    def reopen(self) -> None:
        for proxy in self._each:
            proxy.reopen()

    def hold(self) -> None:
        """Pass nothing on, either way, until `release`."""
        for proxy in self._each:
            proxy.hold()

    def release(self) -> None:
        for proxy in self._each:
            proxy.release()


@contextmanager
def proxied(cluster: Cluster, chance: random.Random) -> Iterator[Proxies]:
    """Proxies while the block runs; whoever else wants some before the same cluster waits."""
    with ExitStack() as stack:
        stack.enter_context(cluster.proxy_ports_held())
        each = [
            Proxy((host, target), chance, port=port, spotter=produces)
            for port, (host, target) in cluster.proxy_ports.items()
        ]
        for proxy in each:
            stack.callback(proxy.close)
        yield Proxies(cluster.proxied_bootstrap, each)


def produces() -> Spotter:
    """Of a Kafka connection: its produce requests, each from its length to its last byte."""
    head, left = b"", 0  # the first six bytes of a request so far; what is still to come of it
    is_produce = False

    def spot(data: bytes) -> bool:
        nonlocal head, left, is_produce
        ended = False
        while data:
            if len(head) < 6:
                taken = 6 - len(head)
                head, data = head + data[:taken], data[taken:]
                if len(head) < 6:
                    break
                left, is_produce = int.from_bytes(head[:4]) - 2, int.from_bytes(head[4:]) == PRODUCE
            taken = min(left, len(data))
            left, data = left - taken, data[taken:]
            if not left:
                ended, head = ended or is_produce, b""
        return ended

    return spot
