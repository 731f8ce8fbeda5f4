"""How much at once: what may be in flight, how large a group is, how many run side by side. No I/O; times come in as
arguments.
"""

from __future__ import annotations


class InFlight:
    """Records and expanded bytes that were received and have not ended, bounded per process.

    The bounds are targets: when nothing is in flight there is always room for one fetch, however large. Bytes are
    kept per partition as an average over its open records, so that no record has to be measured twice.
    """

    def __init__(self, records: int, size: int) -> None:
        self.most_records, self.most_bytes = records, size
        self._open: dict[tuple[str, int], tuple[int, float]] = {}

    @property
    def records(self) -> int:
        return sum(count for count, _ in self._open.values())

    @property
    def bytes(self) -> int:
        return int(sum(size for _, size in self._open.values()))

    def room(self) -> tuple[int, int]:
        """(records, bytes) that may still be fetched; (0, 0) when either bound is met."""
        records, size = self.most_records - self.records, self.most_bytes - self.bytes
        return (records, size) if records > 0 and size > 0 else (0, 0)

    def add(self, partition: tuple[str, int], records: int, size: int) -> None:
        count, held = self._open.get(partition, (0, 0.0))
        self._open[partition] = (count + records, held + size)

    def remove(self, partition: tuple[str, int], records: int) -> None:
        count, held = self._open[partition]
        left = count - records
        self._open[partition] = (left, held * left / count if left else 0.0)

    def drop(self, partition: tuple[str, int]) -> None:
        """The partition was given back: nothing of it is in flight here."""
        self._open.pop(partition, None)

    def average(self, partition: tuple[str, int]) -> float:
        """Mean expanded bytes of an open record of the partition."""
        count, held = self._open.get(partition, (0, 0.0))
        return held / count if count else 0.0


class GroupSize:
    """How many records one transaction takes: adaptive, so that its work stays near the target time.

    Starts at one record, doubles while the work takes less than half the target, and follows the measured cost of a
    record beyond that. What a commit costs by itself does not count: the slower it is, the larger a group must be.
    """

    def __init__(self, most: int, target_s: float, *, fixed: bool = False) -> None:
        self.most, self.target_s = most, target_s
        self.size = most if fixed else 1
        self._fixed = fixed

    def observe(self, records: int, seconds: float) -> None:
        """A group of so many records took so long, the commit left out."""
        if self._fixed or records == 0:
            return
        if seconds > self.target_s:
            fitting = int(records * self.target_s / seconds)
            self.size = max(1, min(self.size, fitting))
        elif records >= self.size and seconds < self.target_s / 2:
            self.size = min(self.most, self.size * 2)
        elif records >= self.size:
            self.size = min(self.most, max(self.size, int(records * self.target_s / max(seconds, 1e-6))))


class Width:
    """How many executors of one process work side by side: more only where they wait for the database and do not
    compute, for the threads of one interpreter compute one at a time.

    Starts at one. One more while all are busy and the process would still compute for less than LITTLE of the time;
    one less once it computes for more than MUCH.
    """

    LITTLE, MUCH, BUSY = 0.6, 0.9, 0.8

    def __init__(self, most: int, *, adaptive: bool = True) -> None:
        self.most = most
        self.width = 1 if adaptive else most
        self._adaptive = adaptive

    def observe(self, seconds: float, computed_s: float, busy_s: float) -> None:
        """In the last `seconds` the process computed for so long, and the executors together were busy for so long."""
        if not self._adaptive or seconds <= 0:
            return
        load = computed_s / seconds
        if load > self.MUCH:
            self.width = max(1, self.width - 1)
        elif busy_s >= self.BUSY * self.width * seconds and load * (self.width + 1) / self.width <= self.LITTLE:
            self.width = min(self.most, self.width + 1)
