"""A round: processes die in one window, again and again, until they died often enough; then all is left to settle.

Which process dies, and what must be going on so that it comes by the window, depends on the window's journey.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable

from settled.drills.crew import Process
from settled.drills.history import Event
from settled.drills.order import Death
from settled.drills.world import WorkerFailed, World
from settled.store import Selection
from settled.windows import WINDOWS

RANDOM = "random"
TICK_S = 0.02
PER_DEATH_S = 4.0  # a round gives up when deaths come more slowly than this
JOURNEY = {window.name: window.journey for window in WINDOWS} | {RANDOM: RANDOM}
AGAIN = 5  # how often a worker that settled all is followed by another, at most
AFTER_A_DEATH = frozenset({"suspects-recorded", "claims-recognised"})
MOST_TH = {"handler": 60, "unit-begun": 3, "effect-made": 3, "marks-written": 3, "effect-committed": 3}
MOST_TH |= {"fence-unwritten": 2, "fence-written": 2, "frontier-uncommitted": 2, "append-written": 2}


class Round:
    """Kills in one world, through one window."""

    def __init__(self, world: World, window: str, kills: int, chance: random.Random) -> None:
        self.world, self.window, self.kills, self.chance = world, window, kills, chance
        self.deaths = 0
        self.clocks: tuple[float, ...] = (0.0,)  # how far the clocks of workers may be off
        self._deadline = 0.0
        self._workers: list[Process] = []
        self._until: dict[int, float] = {}  # order number -> when this worker is killed or stopped from outside
        self._progress: tuple[int, ...] = ()
        self._progressed = 0.0
        self._accept = world.folder / "accept"

    def run(self) -> None:
        """Kill, settle, look; the history says what came of it."""
        began = time.monotonic()
        self._deadline = began + 20.0 + PER_DEATH_S * self.kills
        journey = JOURNEY[self.window]
        run: dict[str, Callable[[], None]] = {
            "publish": self._publishers,
            "retention": self._retainers,
            "relay": self._relays,
            "redrive": self._redrives,
        }
        run.get(journey, self._kill_workers)()
        self.settle()
        self.world.snapshot()

    def settle(self) -> None:
        """Nothing dies any more: what was published must end in time."""
        world = self.world
        self._stop_workers()
        limit = world.lease_s + world.settle_s
        process = world.start(drained=True)
        self._progress = ()
        again = 0 if world.readable else AGAIN
        while not self._hangs():
            world.crew.wait([process], TICK_S)
            if not process.alive:
                if not again or process.code != 0 or (world.settled() and not world.ready()):
                    break
                process = world.start(drained=True)  # a queue handed something out again meanwhile
                again -= 1
        if process.alive:
            world.stop([process])
        drained = world.settled()
        done = drained and self._requested() == 0
        world.tell_drained(done, f"nothing moved for {limit:g} s after the last fault, and not all is settled")

    # Publishing.

    def _publishers(self) -> None:
        """Producers die; a worker runs all the while."""
        world = self.world
        worker = self._start_worker(None)
        while self.deaths < self.kills and not self._late():
            messages = world.supply.take(12)
            if not messages:
                break
            nth = self.chance.randint(1, 3)
            self.deaths += world.publish(messages, [Death(window=self.window, nth=nth)])
            self._require_alive(worker)
        world.snapshot()

    def _retainers(self) -> None:
        """Whoever applies retention dies; a worker and a producer run all the while. The worker comes first: what is
        removed before its group begins is not the group's to miss."""
        world = self.world
        worker = self._start_worker(None)
        while worker.alive and not world.owns(worker) and not self._late():
            world.crew.wait([worker], TICK_S)
        while self.deaths < self.kills and not self._late():
            process = world.start("retain", death=Death(window=self.window, nth=self.chance.randint(1, 2)))
            while process.alive and not self._late():
                messages = world.supply.take(20)
                if not messages:
                    world.stop([process])
                    return
                world.publish(messages)
                world.crew.wait([process], TICK_S * 5)
            world.stop([process])
            self.deaths += process.killed
            self._require_alive(worker)
            world.snapshot()

    def _relays(self) -> None:
        """Relays die; a worker and an application that fills the outbox run all the while."""
        world = self.world
        worker = self._start_worker(None)
        while self.deaths < self.kills and not self._late():
            messages = world.supply.take(20)
            if not messages:
                break
            world.put_in_outbox(messages)
            relay = world.start("relay", death=Death(window=self.window, nth=self.chance.randint(1, 2)), drained=True)
            if not world.crew.wait_ended(relay, PER_DEATH_S + world.settle_s):
                world.stop([relay])
            self.deaths += relay.killed
            self._require_alive(worker)
        world.empty_outbox()
        world.snapshot()

    # Working.

    def _kill_workers(self) -> None:
        """Workers die in the window and are started again at once."""
        self._feed()
        count = 2 if JOURNEY[self.window] in ("revoke", "takeover", RANDOM) else 1
        while self.deaths < self.kills and not self._late():
            while len(self._workers) < count:
                self._start_worker(self._death())
            self._prod()
            self.world.crew.wait(self._workers, TICK_S)
            died = self._reap()
            if died:
                self.world.snapshot()
            elif self._hangs() or (self.world.settled() and not self._feed()):
                break

    def _hangs(self) -> bool:
        """Whether for longer than the last records may take nothing died, no frontier moved and no redrive ended."""
        asked = self._requested() if JOURNEY.get(self.window) == "redrive" else 0
        now, progress = time.monotonic(), (self.deaths, asked, *self.world.frontiers())
        if progress != self._progress:
            self._progress, self._progressed = progress, now
        return now - self._progressed > self.world.lease_s + self.world.settle_s

    def _death(self) -> Death | None:
        """Where the next worker dies. Suspects are there only after another worker died."""
        if self.window == RANDOM:
            return None
        if self.window in AFTER_A_DEATH and not any(process.killed for process in self.world.processes):
            return Death(window="effect-made", nth=1)
        return Death(window=self.window, nth=self.chance.randint(1, MOST_TH.get(self.window, 1)))

    def _prod(self) -> None:
        """Do from outside what brings a worker to the window: kill it at random, or ask it to stop."""
        for worker in self._workers if JOURNEY[self.window] in ("revoke", "stop", RANDOM) else ():
            if worker.order.number not in self._until:
                if self.window == RANDOM or self.world.owns(worker):
                    soon = self.chance.uniform(0.0, self.world.lives_s * (3 if self.window == RANDOM else 1))
                    self._until[worker.order.number] = time.monotonic() + soon
            elif worker.alive and not worker.told and time.monotonic() > self._until[worker.order.number]:
                if self.window == RANDOM:
                    self.world.writer.write(Event(what="death", window=RANDOM, pid=worker.pid))
                    self.world.crew.send(worker, signal.SIGKILL)
                else:
                    self.world.crew.terminate(worker)

    def _feed(self) -> bool:
        """Publish more; false when there is no more."""
        if self.window in AFTER_A_DEATH:  # a worker that settled all leaves nothing behind
            for worker in self._workers:
                self.world.crew.end(worker)
            self._workers.clear()
        elif JOURNEY[self.window] == "takeover":  # a worker that owns its partitions comes by no more
            self._stop_workers()
        every = 3 if self.window in ("quarantine-decided", "decisions-written") else 0
        messages = self.world.supply.take(40, reject_every=every, accept=self._accept)
        if messages:
            self.world.publish(messages)
        return bool(messages)

    def _start_worker(self, death: Death | None) -> Process:
        process = self.world.start(death=death, clock_s=self.chance.choice(self.clocks))
        self._workers.append(process)
        return process

    def _reap(self) -> int:
        """Take those that ended out; how many died as they were meant to."""
        died = 0
        for process in [each for each in self._workers if not each.alive]:
            self._workers.remove(process)
            if process.killed:
                prelude = process.order.death is not None and process.order.death.window != self.window
                died += not prelude
            elif process.code != 0 and not (process.told and process.code == -signal.SIGTERM):
                raise WorkerFailed(
                    f"a worker ended with code {process.code}", hint=f"see {self.world.folder / 'output.log'}"
                )
        self.deaths += died
        return died

    def _stop_workers(self) -> None:
        self.world.stop([process for process in self._workers if process.alive])
        self._reap()
        self._workers.clear()

    def _require_alive(self, worker: Process) -> None:
        if not worker.alive:
            raise WorkerFailed(
                f"a worker ended with code {worker.code}", hint=f"see {self.world.folder / 'output.log'}"
            )

    # Redriving.

    def _redrives(self) -> None:
        """Records are rejected and lie in quarantine; then they are accepted and redriven, and workers die of it."""
        world = self.world
        messages = world.supply.take(2 * self.kills + 6, reject_every=1, accept=self._accept)
        world.publish(messages)
        process = world.start(drained=True)
        while process.alive and not self._hangs():
            world.crew.wait([process], TICK_S)
        self._accept.touch()
        quarantine = world.store.quarantine
        numbers = quarantine.select(Selection(consumer=world.consumer))
        world.snapshot()
        quarantine.request(numbers, reason="drill", who="drill")
        while self.deaths < self.kills and not self._late() and self._requested():
            if not self._workers:
                self._start_worker(Death(window=self.window))
            world.crew.wait(self._workers, TICK_S)
            if self._reap():
                world.snapshot()
        self._stop_workers()
        worker = self._start_worker(None)
        while self._requested() and not self._hangs():
            world.crew.wait([worker], TICK_S)

    def _requested(self) -> int:
        """Redrives that were asked for and have not ended."""
        found = self.world.store.quarantine.select(Selection(consumer=self.world.consumer, states=("requested",)))
        return len(found)

    def _late(self) -> bool:
        return time.monotonic() > self._deadline
