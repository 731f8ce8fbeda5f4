"""The drill `frame-cut` of RabbitMQ: connections are cut at each of their first frames, while records come and go."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator

from settled.drills.checker import NONE
from settled.drills.crew import Process
from settled.drills.disturbed import require_alive, working
from settled.drills.frame_proxy import Cut, FrameProxy, framed
from settled.drills.history import Event
from settled.drills.rounds import TICK_S
from settled.drills.world import World
from settled.testing.rabbitmq_keeper import HOST

RATE, LIFE_S = 200, 10.0  # records a second; how long one producer sends
LEFT_S = 4.0  # a producer that has less to live is not cut off any more
FRAME_S = 15.0  # within which a frame comes, and within which all goes on after it


def frame_cut(world: World, times: int, chance: random.Random) -> tuple[int, str]:
    """Connections of a producer and of a worker are cut at each of their first frames, before it or within it."""
    assert world.nodes is not None, "see require_nodes"
    if not world.readable:
        world.order = NONE  # what has no confirm is there twice
    target = HOST, next(iter(world.nodes.ports.values()))
    done = unreached = 0
    with framed(target, chance) as to_producer, framed(target, chance) as to_worker:
        world.publish_url = to_producer.url
        traffic = _Traffic(world)
        with working(world, 1, to_worker.url) as workers:
            for proxy, plan in _cuts((to_producer, to_worker), times):
                traffic.fresh()
                proxy.cut(plan)
                if not traffic.until(proxy.was_cut):
                    unreached += 1
                    continue
                done += 1
                whose = "producer" if proxy is to_producer else "worker"
                what = f"{whose}, {plan.way}, {'within' if plan.within else 'before'} frame {plan.frame}"
                world.writer.write(Event(what="death", window="frame-cut", note=what))
                _require_progress(world, traffic, what, workers)
            traffic.end()
        world.publish_url = ""
    return done, f"up to frame {plan.frame}, both ways; {unreached} frames did not come"


def _cuts(proxies: tuple[FrameProxy, ...], times: int) -> Iterator[tuple[FrameProxy, Cut]]:
    """So many, at the first frame of each, both ways, before and within it, then at the second, and so on."""
    every = (
        (proxy, Cut(frame=number, way=way, within=within))
        for number in itertools.count(1)
        for proxy in proxies
        for way in ("up", "down")
        for within in (False, True)
    )
    return itertools.islice(every, times)


def _require_progress(world: World, traffic: _Traffic, what: str, workers: list[Process]) -> None:
    """After a cut records are accepted again, and end again."""
    accepted, ended = traffic.accepted(), world.ended()
    if not traffic.until(lambda: traffic.accepted() > accepted and world.ended() > ended):
        world.tell_drained(False, f"nothing moved for {FRAME_S:g} s after a cut: {what}")
    for worker in workers:
        require_alive(world, worker)


class _Traffic:
    """A producer at work; another one when it has sent all it had."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stream: Process | None = None
        self._earlier = 0  # accepted of producers that have ended

    def accepted(self) -> int:
        return self._earlier + (0 if self._stream is None else self._world.accepted_by(self._stream))

    def fresh(self) -> None:
        """A producer that has been at work and will be for a while."""
        stream = self._stream
        if stream is not None and stream.alive and time.monotonic() - stream.started < LIFE_S - LEFT_S:
            return
        self._begin()
        accepted = self.accepted()
        self._wait(lambda: self.accepted() > accepted)

    def until(self, done: Callable[[], bool]) -> bool:
        """Whether it is done in time."""
        return self._wait(done)

    def end(self) -> None:
        """Until all that was sent is accepted."""
        if self._stream is not None:
            self._world.finish(self._stream)
            self._earlier += self._world.accepted_by(self._stream)
            self._stream = None

    def _begin(self) -> None:
        self.end()
        self._stream = self._world.stream(self._world.supply.take(round(RATE * LIFE_S)), RATE)

    def _wait(self, done: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + FRAME_S
        while not done():
            if time.monotonic() > deadline:
                return False
            if self._stream is None or not self._stream.alive:
                self._begin()
            time.sleep(TICK_S)
        return True
