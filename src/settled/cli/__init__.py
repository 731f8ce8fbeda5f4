"""The command `settled`: reads the operations and the app, prints, and turns every error into an exit code.

Exit codes: 0 done; 1 done and the answer is bad; 2 usage, or something you wrote is wrong; 3 refused by a guard;
69 engine or store unreachable; 75 another owner took over; 130 interrupted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import NoReturn

from settled.errors import SettledError


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit."""
    with _interrupts_end():
        from settled.cli import output

    output.prepare_streams()
    try:
        code = exit_code(arguments)
        output.flush()
    except KeyboardInterrupt:
        code = 130
    raise SystemExit(code)


def exit_code(arguments: Sequence[str] | None = None) -> int:
    """The one place where errors are told: message and hint on standard error, the error's own exit code."""
    with _interrupts_end():
        from settled.cli.output import say
        from settled.cli.verbs import command

    try:
        command().main(args=None if arguments is None else list(arguments), prog_name="settled")
    except SettledError as error:
        say(f"settled: {error}")
        return error.exit_code
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    return 0


@contextlib.contextmanager
def _interrupts_end() -> Iterator[None]:
    """An interrupt while modules are imported ends the process at once: as an exception it may come where the
    interpreter can only drop it. Nothing has been begun by then."""
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
