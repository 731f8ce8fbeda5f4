"""The machine's clocks, asked of the kernel. All processes on a machine read the same values, whatever their own
library calls are made to say, so leases and due times of the embedded engine never depend on a worker's clock.

`boot_us` only moves forward, also through sleep, and starts again at boot (`boot_id` says which boot).
`wall_us` is the time of day in UTC.
"""

from __future__ import annotations

import ctypes
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

_CLOCK_REALTIME, _CLOCK_BOOTTIME = 0, 7
_CLOCK_GETTIME = {"x86_64": 228, "aarch64": 113, "riscv64": 113}  # the system call's number


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


def _kernel_clock() -> Callable[..., int] | None:
    if sys.platform != "linux" or sys.maxsize < 2**32 or platform.machine() not in _CLOCK_GETTIME:
        return None
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    call.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.POINTER(_Timespec))
    return call


_syscall = _kernel_clock()
_number = _CLOCK_GETTIME.get(platform.machine(), 0)


def _read(clock: int) -> int | None:
    if _syscall is None:
        return None
    spec = _Timespec()
    if _syscall(_number, clock, ctypes.byref(spec)) != 0:
        return None
    return int(spec.seconds) * 1_000_000 + int(spec.nanoseconds) // 1000


def boot_us() -> int:
    """Microseconds since boot; for leases and other spans between processes of one machine."""
    found = _read(_CLOCK_BOOTTIME)
    return time.monotonic_ns() // 1000 if found is None else found


def wall_us() -> int:
    """Microseconds since 1970 in UTC; for moments that people read, due times and retention."""
    found = _read(_CLOCK_REALTIME)
    return time.time_ns() // 1000 if found is None else found


def boot_id() -> str:
    """Names this boot of this machine; spans of `boot_us` never compare across two of them."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else "one-boot"
