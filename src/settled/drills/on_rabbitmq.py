"""Drills by name that RabbitMQ has: nodes that die, clients that are cut off, alarms, claims that are held too long.
Each takes a world with nodes that it may harm; see `named` for the form."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from settled.drills import history, rabbitmq
from settled.drills.checker import NONE
from settled.drills.crew import Process
from settled.drills.disturbed import OWN_S, cut_off, look, require_alive, working
from settled.drills.frame_cuts import frame_cut
from settled.drills.history import Event
from settled.drills.named import NamedDrill, waited
from settled.drills.proxy import Proxy
from settled.drills.rounds import Round
from settled.drills.world import World
from settled.errors import Refused
from settled.record import Message
from settled.testing.rabbitmq_keeper import HOST
from settled.testing.rabbitmq_nodes import Nodes

RATE = 300  # records a second while a leader dies
BEFORE_S, AFTER_S = 1.0, 5.0  # of such load before a leader dies, and after that
ALARM, NO_ALARM = ("0.0000001",), ("absolute", "2GB")
PATIENCE_S = 1.0  # of a sender that does not wait for the end of an alarm
HOLD_S = 2.0  # how long claims may be held, where that is short
SLOW_S = 0.7  # a handler of which a group takes longer


def leader_kill(world: World, times: int, chance: random.Random) -> tuple[int, str]:
    """The node that leads the queue is killed (SIGKILL) under 300 records a second, and comes back."""
    nodes, queue = _nodes(world), rabbitmq.queue_of(world.contract)
    if not world.readable:
        world.order = NONE  # what has no confirm goes again after what was stored meanwhile
    nodes.remember()
    longest = 0.0
    with working(world, 2):
        for _ in range(times):
            dead = rabbitmq.leader(nodes, queue)
            stream = world.stream(world.supply.take(round(RATE * (BEFORE_S + AFTER_S))), RATE)
            waited(lambda stream=stream: world.accepted_by(stream) > RATE * BEFORE_S, OWN_S)  # type: ignore[misc]
            world.writer.write(Event(what="death", window="leader-kill", note=f"node {dead}"))
            nodes.kill(dead)
            died, seen = time.monotonic(), world.accepted_by(stream)
            if not waited(lambda stream=stream, seen=seen: world.accepted_by(stream) > seen, OWN_S):  # type: ignore[misc]
                world.tell_drained(False, f"nothing was accepted for {OWN_S:g} s after node {dead} died")
            longest = max(longest, time.monotonic() - died)
            nodes.wait_ready()
            world.finish(stream)
            waited(world.settled_if_reachable, OWN_S)
            look(world)
    return times, f"{RATE} records a second meanwhile; accepted again after {longest:.1f} s at most"


def partition_cut(world: World, times: int, chance: random.Random) -> tuple[int, str]:
    """A worker is cut off from the node beyond its lease, another takes over, then the first is let back in."""
    with _proxied(world, chance) as proxy:
        note = cut_off(world, times, proxy, _by_way_of(proxy))
    Round(world, "random", 0, chance).settle()
    return times, note


def memory_alarm(world: World, times: int, chance: random.Random) -> tuple[int, str]:
    """The node has no memory to spare (a memory alarm) while records are published and worked on."""
    nodes = _nodes(world)
    gave_up = 0
    with working(world, 1):
        for number in range(times):
            messages = world.supply.take(100)
            nodes.ctl("set_vm_memory_high_watermark", *ALARM)
            try:
                if number % 2:
                    gave_up += _gives_up(world, messages)
                else:
                    stream = world.stream(messages, RATE)
                    world.crew.wait([stream], PATIENCE_S)
            finally:
                nodes.ctl("set_vm_memory_high_watermark", *NO_ALARM)
            if number % 2:
                world.publish(messages)
            else:
                world.finish(stream)
            waited(world.settled, OWN_S)
            look(world)
    return times, f"{gave_up} senders gave up meanwhile, the others waited"


def consumer_timeout(world: World, times: int, chance: random.Random) -> tuple[int, str]:
    """The broker takes claims back that are held too long (its consumer timeout), from under a slow handler."""
    nodes = _nodes(world)
    taken = 0
    with _short_hold(nodes):
        for _ in range(times):
            slow = world.start(pause_s=SLOW_S)
            waited(lambda slow=slow: world.owns(slow), OWN_S)  # type: ignore[misc]
            world.publish(world.supply.take(20))
            taken += waited(lambda slow=slow: _lost(world, slow), OWN_S)  # type: ignore[misc]
            quick = world.start()
            waited(world.settled, OWN_S)
            look(world)
            require_alive(world, slow)
            world.stop([slow, quick], OWN_S)
    Round(world, "random", 0, chance).settle()
    return taken, f"a group of claims took longer than {HOLD_S:g} s"


def _gives_up(world: World, messages: Sequence[Message]) -> bool:
    """A sender that does not wait for long: what it holds no receipt for is unavailable, and nothing is refused."""
    world.publish_url = f"{world.engine_url}?publish_timeout={PATIENCE_S:g}"
    sender = world.stream(messages, RATE)
    world.publish_url = ""
    if not world.crew.wait_ended(sender, OWN_S):
        world.tell_drained(False, f"a sender did not give up within {OWN_S:g} s of a memory alarm")
        world.crew.end(sender)
    path = next(world.folder.glob(f"publish-{sender.pid}-*.jsonl"))
    steps = {event.step for event in history.read_file(path)}
    if "fail" in steps:
        world.tell_drained(False, "a memory alarm made a sender fail for good")
    return "info" in steps


def _lost(world: World, worker: Process) -> bool:
    """Whether a slot was taken from it."""
    paths = world.folder.glob(f"work-{worker.pid}-*.jsonl")
    return any(event.outcome == "lost" for path in paths for event in history.read_file(path))


@contextmanager
def _short_hold(nodes: Nodes) -> Iterator[None]:
    """Channels that are opened meanwhile may hold a claim for HOLD_S, and are looked at twice a second."""
    usual = _set(nodes, _HELD)
    try:
        yield
    finally:
        _set(nodes, usual)


def _set(nodes: Nodes, settings: Mapping[str, int]) -> dict[str, int]:
    """Set them on the node; what they were before."""
    asked = ", ".join(f"{{{name}, {value}}}" for name, value in settings.items())
    told = nodes.ctl(
        "eval",
        "[begin {ok, Before} = application:get_env(rabbit, Name), application:set_env(rabbit, Name, Value), Before end"
        f" || {{Name, Value}} <- [{asked}]].",
    )
    return dict(zip(settings, json.loads(told), strict=True))


_HELD = {"consumer_timeout": round(HOLD_S * 1000), "channel_tick_interval": 500}


@contextmanager
def _proxied(world: World, chance: random.Random) -> Iterator[Proxy]:
    proxy = Proxy((HOST, next(iter(_nodes(world).ports.values()))), chance)
    try:
        yield proxy
    finally:
        proxy.close()


def _by_way_of(proxy: Proxy) -> str:
    return f"rabbitmq://guest:guest@127.0.0.1:{proxy.port}/"


def _nodes(world: World) -> Nodes:
    assert world.nodes is not None, "see require_nodes"
    return world.nodes


def require_nodes(names: Sequence[str], engine: str, nodes: Nodes | None) -> int:
    """How many nodes of its own the drill needs. Raises Refused for drills that may not be done to the nodes there."""
    if not rabbitmq.is_rabbitmq(engine):
        return 0
    hint = f"--engine {rabbitmq.OWN} starts nodes of its own (Debian's package rabbitmq-server is needed)"
    asked = [name for name in names if name in ON_RABBITMQ]
    if asked and nodes is None and not engine.startswith(rabbitmq.OWN):
        raise Refused(f"{', '.join(asked)} harms nodes, and does that only to its own", hint=hint)
    return rabbitmq.nodes_needed(names)


ON_RABBITMQ: dict[str, NamedDrill] = {
    "leader-kill": leader_kill,
    "partition-cut": partition_cut,
    "frame-cut": frame_cut,
    "memory-alarm": memory_alarm,
    "consumer-timeout": consumer_timeout,
}
