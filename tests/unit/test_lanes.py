"""Lanes against a naive model: whatever is taken, given back, held or released in whatever order, each record of a key
comes after the one before it has ended, nothing is lost and nothing comes twice.
"""

from __future__ import annotations

import pytest
from delivery_records import record
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from settled.delivery.lanes import Lanes
from settled.record import Record

KEYS = st.sampled_from([None, b"", b"a", b"b", b"c"])


class LanesAgainstModel(RuleBasedStateMachine):
    """The model knows which records are out (taken or failed) and which have ended; a key's next record is the first
    that has not ended."""

    @initialize()
    def begin(self) -> None:
        self.lanes = Lanes()
        self.received: list[Record] = []
        self.running: list[list[Record]] = []  # groups that were taken
        self.failed: list[Record] = []  # held
        self.ended: set[int] = set()

    def out(self) -> set[int]:
        return {each.offset for group in self.running for each in group} | {each.offset for each in self.failed}

    def check_may_run(self, taken: list[Record]) -> None:
        out = self.out()
        offsets = [each.offset for each in taken]
        assert len(set(offsets)) == len(offsets)
        assert not out & set(offsets)
        assert not self.ended & set(offsets)
        for each in taken:
            if each.key is None:
                continue
            before = [r for r in self.received if r.key == each.key and r.offset < each.offset]
            for earlier in before:
                assert earlier.offset in self.ended or earlier.offset in offsets[: offsets.index(each.offset)]
            assert not any(r.key == each.key for group in self.running for r in group)
            assert not any(r.key == each.key for r in self.failed)

    @rule(keys=st.lists(KEYS, min_size=1, max_size=6))
    def receive(self, keys: list[bytes | None]) -> None:
        first = len(self.received)
        fresh = [record(first + n, key) for n, key in enumerate(keys)]
        self.received += fresh
        self.lanes.add(fresh)

    @rule(most=st.integers(1, 8))
    def take(self, most: int) -> None:
        taken = self.lanes.take(most)
        assert len(taken) <= most
        self.check_may_run(taken)
        assert not any(each.key in self.lanes.slow for each in taken)
        if taken:
            self.running.append(taken)

    @rule()
    def take_apart(self) -> None:
        found = self.lanes.take_apart()
        if found is not None:
            self.check_may_run([found])
            assert found.key in self.lanes.slow
            self.running.append([found])

    @rule(key=st.sampled_from([b"a", b"b"]))
    def turn_slow(self, key: bytes) -> None:
        self.lanes.slow.add(key)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end_group(self, data: st.DataObject) -> None:
        """Some of a key's records ended, the next failed, the later ones are given back."""
        group = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        blocked: set[bytes] = set()
        ended: list[Record] = []
        failed: list[Record] = []
        returned: list[Record] = []
        for each in group:
            fate = data.draw(st.sampled_from(["end", "end", "fail", "return"]))
            if each.key in blocked:
                returned.append(each)
            elif fate == "end":
                ended.append(each)
            else:
                (failed if fate == "fail" else returned).append(each)
                if each.key is not None:
                    blocked.add(each.key)
        self.ended |= {each.offset for each in ended}
        self.lanes.release({each.key for each in ended})
        for each in failed:
            self.failed.append(each)
            self.lanes.hold(each.key)
        self.lanes.give_back(returned, held={each.key for each in self.failed})

    @precondition(lambda self: any(len(group) > 1 for group in self.running))
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        """The tail of a running group is taken back; the head runs on."""
        group = data.draw(st.sampled_from([group for group in self.running if len(group) > 1]))
        cut = data.draw(st.integers(1, len(group) - 1))
        tail = group[cut:]
        del group[cut:]
        busy = {each.key for each in group} | {each.key for each in self.failed}
        self.lanes.give_back(tail, held=busy)

    @precondition(lambda self: self.failed)
    @rule(data=st.data())
    def end_failed(self, data: st.DataObject) -> None:
        each = self.failed.pop(data.draw(st.integers(0, len(self.failed) - 1)))
        self.ended.add(each.offset)
        self.lanes.release([each.key])

    @invariant()
    def all_are_accounted_for(self) -> None:
        if hasattr(self, "lanes"):
            apart = len(self.lanes._apart)
            inside = len(self.lanes) + self.lanes.waiting + apart
            assert inside + len(self.out()) + len(self.ended) == len(self.received)

    def teardown(self) -> None:
        """Whatever happened, all of it comes out in the end."""
        if not hasattr(self, "lanes"):
            return
        for each in self.failed:
            self.ended.add(each.offset)
            self.lanes.release([each.key])
        self.failed = []
        for _ in range(2 * len(self.received) + 2):
            for group in self.running:
                self.ended |= {each.offset for each in group}
                self.lanes.release({each.key for each in group})
            apart = self.lanes.take_apart()
            self.running = [[apart]] if apart else []
            taken = self.lanes.take(3)
            self.running += [taken] if taken else []
        assert len(self.ended) == len(self.received)


LanesAgainstModel.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLanes = LanesAgainstModel.TestCase


def test_records_without_a_key_never_wait() -> None:
    lanes = Lanes()
    lanes.add([record(n) for n in range(4)])
    lanes.hold(None)
    assert [each.offset for each in lanes.take(2)] == [0, 1]
    assert [each.offset for each in lanes.take(2)] == [2, 3]


def test_an_empty_key_is_a_key() -> None:
    lanes = Lanes()
    lanes.add([record(0, b""), record(1, None)])
    lanes.hold(b"")
    assert [each.offset for each in lanes.take(5)] == [1]
    assert lanes.waiting == 1


def test_without_order_no_key_waits() -> None:
    lanes = Lanes(ordered=False)
    lanes.add([record(n, b"k") for n in range(3)])
    first = lanes.take(1)
    lanes.hold(b"k")
    assert not lanes.wait_behind(record(9, b"k"))
    assert [each.offset for each in lanes.take(5)] == [1, 2]
    lanes.give_back(first, held={b"k"})
    assert [each.offset for each in lanes.take(5)] == [0]


def test_a_record_waits_behind_its_busy_key_only() -> None:
    lanes = Lanes()
    assert not lanes.wait_behind(record(0, b"k"))
    lanes.hold(b"k")
    assert lanes.has_key(b"k")
    assert not lanes.has_key(b"m")
    assert not lanes.has_key(None)
    assert lanes.wait_behind(record(1, b"k"))
    assert lanes.take(1) == []
    lanes.release([b"k"])
    assert [each.offset for each in lanes.take(1)] == [1]


@pytest.mark.parametrize("most", [1, 2, 10])
def test_a_group_may_hold_several_records_of_one_key_in_order(most: int) -> None:
    lanes = Lanes()
    lanes.add([record(n, b"k") for n in range(3)])
    assert [each.offset for each in lanes.take(most)] == list(range(min(most, 3)))
    assert lanes.take(10) == []  # the key is busy
