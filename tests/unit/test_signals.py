"""Stopping by signal: never on the main thread, which may hold what stopping needs."""

import os
import signal
import sys
import threading

import pytest

from settled.operations.supervise import Supervisor
from settled.signals import interruptible, on_signals


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


def signal_beside(number: signal.Signals) -> threading.Thread:
    """After a moment, sent to another thread: the main one's wait in the operating system is not cut short, as when
    the signal comes just before it."""

    def send() -> None:
        threading.Event().wait(0.3)
        signal.pthread_kill(threading.get_ident(), number)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_a_signal_is_minded_although_the_main_thread_waits_in_the_operating_system() -> None:
    lock = threading.Lock()
    lock.acquire()
    with on_signals(lock.release):
        beside = signal_beside(signal.SIGTERM)
        assert lock.acquire(timeout=30)
    beside.join()


@pytest.mark.timeout(60)
def test_an_interrupt_ends_a_read_that_waits() -> None:
    read, write = os.pipe()
    with interruptible() as interrupts, os.fdopen(read, "rb") as file, os.fdopen(write, "wb") as source:
        lines = interrupts.reads(file)
        source.write(b"one\ntwo")
        source.flush()
        assert lines.readline() == b"one\n"
        beside = signal_beside(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            lines.readline()
    beside.join()


def test_an_interrupt_is_raised_where_it_is_asked_for_and_the_second_at_once() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interruptible() as interrupts:
        interrupts.check()
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


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
