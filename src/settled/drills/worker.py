"""The fork server of a drill: `python -m settled.drills.worker`. It has imported everything, holds no connection and no
thread, and forks a process for each order that it reads; so a process costs milliseconds and still is a real one.

Orders come as lines on standard input, answers go as lines to standard output. At the end of the input all that still
runs is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import logging
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from settled.drills import order as orders
from settled.drills import roles
from settled.drills.order import Answer, Order

_DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG


ADAPTERS = (
    "settled.engines.sqlite",
    "settled.engines.kafka",
    "settled.engines.rabbitmq",
    "settled.stores.sqlite",
    "settled.stores.postgres",
    "settled.drills.sample",
)


def serve() -> None:
    """Fork and answer until the input ends."""
    for name in ADAPTERS:  # imported once, here, and not in each process
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    gc.freeze()
    answers = os.dup(1)
    os.dup2(2, 1)  # what an application prints must not end up among the answers
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    running: dict[int, int] = {}  # pid -> order number
    held = b""
    while True:
        readable, _, _ = select.select([0, wake_read], [], [])
        if wake_read in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wake_read, 4096)
            _reap(running, answers)
        if 0 in readable:
            more = os.read(0, 65536)
            if not more:
                break
            *lines, held = (held + more).split(b"\n")
            for line in lines:
                order = orders.order_of(line)
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    _become(order, (answers, wake_read, wake_write))
                running[pid] = order.number
                _answer(answers, Answer(number=order.number, pid=pid))
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _reap(running: dict[int, int], answers: int) -> None:
    while running:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:
            return
        if pid == 0:
            return
        number = running[pid] if os.WIFSTOPPED(status) else running.pop(pid)
        _answer(answers, Answer(number=number, pid=pid, status=status))


def _answer(answers: int, answer: Answer) -> None:
    os.write(answers, orders.encode(answer) + b"\n")


def _become(order: Order, inherited: tuple[int, ...]) -> None:
    """In the child: do what was ordered, and never return."""
    code = 70
    try:
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        log = os.open(Path(order.folder) / "output.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for descriptor in (*inherited, log, null):
            os.close(descriptor)
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(name)s %(message)s")
        ROLES[order.role](order)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:  # noqa: BLE001 - the process ends here, whatever it was
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


ROLES: dict[str, Callable[[Order], None]] = {
    "work": roles.work,
    "publish": roles.publish,
    "retain": roles.retain,
    "relay": roles.relay,
}

if __name__ == "__main__":
    serve()
