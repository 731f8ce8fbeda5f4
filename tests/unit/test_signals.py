"""Stopping by signal: never on the main thread, which may hold what stopping needs."""

import os
import signal
import sys
import threading

import pytest

from settled.operations.supervise import Supervisor
from settled.signals import on_signals


def test_a_signal_is_minded_although_the_main_thread_holds_the_lock_that_stopping_needs() -> None:
    """As inside Event.wait: a handler that took the lock itself would wait for ever."""
    lock, acted = threading.Lock(), threading.Event()

    def act() -> None:
        with lock:
            acted.set()

    with on_signals(act):
        with lock:
            os.kill(os.getpid(), signal.SIGTERM)
        assert acted.wait(30)


def test_each_signal_counts_and_what_was_there_before_comes_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    threads: list[str] = []
    both = threading.Semaphore(0)

    def act() -> None:
        threads.append(threading.current_thread().name)
        both.release()

    with on_signals(act):
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
            assert both.acquire(timeout=30)
    assert threads == ["settled-signals"] * 2
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert "settled-signals" not in [thread.name for thread in threading.enumerate()]


def test_elsewhere_than_on_the_main_thread_it_does_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def aside() -> None:
        with on_signals(lambda: None):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=aside)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.timeout(60)
def test_a_parent_of_workers_stops_though_it_is_told_while_it_is_about_to_wait() -> None:
    class Interrupted(threading.Event):
        """Its waiter is sent SIGTERM once while it holds the event's own lock."""

        sent = False

        def wait(self, timeout: float | None = None) -> bool:
            if not self.sent:
                self.sent = True
                with self._cond:  # type: ignore[attr-defined]  # where Event.wait holds it, too
                    os.kill(os.getpid(), signal.SIGTERM)
            return super().wait(timeout)

    said: list[str] = []
    command = (sys.executable, "-c", "import time; time.sleep(300)")
    parent = Supervisor([("worker-1", command)], drain=False, say=said.append)
    parent._wake = Interrupted()
    assert parent.run() == 0
    assert said[0] == "stopping 1 workers"
