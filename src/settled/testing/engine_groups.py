"""What an engine must show of groups: members join, leave, crash and stall; a partition has one owner at a time."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from settled.engine import ConsumerGroup, Engine
from settled.errors import ContractError, Fenced
from settled.testing.engine_tools import (
    DEADLINE_S,
    EngineFactory,
    Member,
    MemberProcess,
    eventually,
    make_topic,
    message,
    names,
    places,
    publish,
    share_out,
    topic_of,
)


class GroupCases:
    lease_s = 0.6  # the shortest that members can be given here

    def test_one_member_gets_everything(self, engine: Engine) -> None:
        make_topic(engine, 6)
        sent = publish(engine, map(message, range(100)))
        member = Member(engine)
        found = member.receives(100)
        assert places(found) == places(sent)
        assert all(one.epoch == 1 and one.clean and one.original for one in member.owned.values())
        assert {one.identity for one in member.owned.values()} == {topic_of(engine).identity}
        member.consumer.commit({(names.topic, 0): 3})
        eventually(lambda: _committed(engine) == 3, "the commit is known")
        info = engine.groups(names.group)[0]
        assert info.members[0].member == member.consumer.member
        assert len(info.members[0].partitions) == 6
        lease_left_s = info.members[0].lease_left_s
        assert lease_left_s is None or 0 < lease_left_s <= 10
        member.consumer.close()
        member.consumer.close()
        info = engine.groups(names.group)[0]
        assert (info.members, info.committed[names.topic, 0]) == ([], 3)
        assert engine.groups("nosuch") == []

    def test_groups_do_not_share(self, engine: Engine) -> None:
        make_topic(engine, 2)
        publish(engine, map(message, range(10)))
        members = [Member(engine, group=f"{names.group}-{name}") for name in ("a", "b")]
        assert [len(member.receives(10)) for member in members] == [10, 10]
        for member in members:
            member.consumer.close()

    def test_a_second_member_gets_its_share(self, engine: Engine, engine_factory: EngineFactory) -> None:
        make_topic(engine, 6)
        first = Member(engine)
        first.owns(6)
        second = Member(engine_factory())
        share_out([first, second], lambda: len(first.owned) == len(second.owned) == 3, "three each")
        assert all(one.epoch == 2 and one.clean for one in second.owned.values())
        assert {one.epoch for one in first.owned.values()} == {1}  # what stayed was never interrupted
        second.consumer.close()
        share_out([first], lambda: len(first.owned) == 6, "the first has all again")
        assert sorted(one.epoch for one in first.owned.values()) == [1, 1, 1, 3, 3, 3]
        first.consumer.close()

    def test_nothing_is_taken_from_a_living_owner(self, engine: Engine) -> None:
        make_topic(engine, 2)
        first = Member(engine, lease_s=self.lease_s)
        first.owns(2)
        first.give_back = False
        second = Member(engine, lease_s=self.lease_s)
        first.until(lambda: len(first.asked) == 1, "asked to give one back")
        until = time.monotonic() + 2.5 * self.lease_s
        while time.monotonic() < until:
            first.poll()
            second.poll()
            assert not second.owned
        first.consumer.release(*first.asked[0])
        second.owns(1)
        assert set(second.owned) == set(first.asked)
        first.consumer.close()
        second.consumer.close()

    def test_thirteen_members_on_twelve_partitions(self, engine: Engine) -> None:
        make_topic(engine, 12)
        members = [Member(engine) for _ in range(13)]
        share_out(members, lambda: sorted(len(one.owned) for one in members) == [0] + [1] * 12, "one each, one idle")
        idle = next(one for one in members if not one.owned)
        assert [info.partitions for info in engine.groups(names.group)[0].members].count([]) == 1
        leaver = next(one for one in members if one.owned)
        leaver.consumer.close()
        members.remove(leaver)
        share_out(members, lambda: len(idle.owned) == 1, "the idle one takes over")
        for member in members:
            member.consumer.close()

    def test_a_killed_member_is_replaced(self, engine: Engine) -> None:
        make_topic(engine, 2)
        publish(engine, map(message, range(10)))
        with MemberProcess(engine, lease_s=1.0, name="w1") as victim:
            victim.says("Assigned", 2)
            victim.signal(signal.SIGKILL)
            killed = time.monotonic()
            with MemberProcess(engine, lease_s=1.0, name="w1") as heir:  # the same name: ownership never rests on it
                taken = heir.says("Assigned", 2)
                assert time.monotonic() - killed < 1.0 + 2.0 + 3.0  # lease, two seconds, and a slow machine's start
        assert sorted((one["partition"], one["epoch"], one["clean"]) for one in taken) == [(0, 2, False), (1, 2, False)]

    def test_a_stopped_member_loses_all_and_is_told(self, engine: Engine) -> None:
        make_topic(engine, 2)
        with MemberProcess(engine, lease_s=self.lease_s) as stalled:
            stalled.says("Assigned", 2)
            stalled.signal(signal.SIGSTOP)
            other = Member(engine, lease_s=self.lease_s)
            other.owns(2)
            assert all(one.epoch == 2 and not one.clean for one in other.owned.values())
            publish(engine, map(message, range(10)))
            other.receives(10)
            stalled.signal(signal.SIGCONT)
            lost = stalled.says("Lost", 2)
            assert sorted(one["partition"] for one in lost) == [0, 1]
            share_out([other], lambda: len(other.owned) == 1, "the one that came back gets its share anew")
            again = stalled.says("Assigned", 3)[2]
            assert (again["epoch"], again["clean"]) == (3, True)
            before = stalled.said.index(lost[-1])
            assert all(one["kind"] != "Fetched" for one in stalled.said[:before])
            other.consumer.close()

    def test_a_busy_owner_keeps_its_lease(self, engine: Engine) -> None:
        make_topic(engine, 1)
        busy = Member(engine, lease_s=self.lease_s)
        busy.owns(1)
        other = Member(engine, lease_s=self.lease_s)
        until = time.monotonic() + 3 * self.lease_s
        while time.monotonic() < until:  # three leases in which the owner never polls
            other.poll()
        assert not other.owned
        assert busy.consumer.raise_epoch(names.topic, 0, 1) == 2
        busy.consumer.close()
        other.consumer.close()

    def test_raising_the_epoch(self, engine: Engine) -> None:
        make_topic(engine, 1)
        member = Member(engine)
        member.owns(1)
        assert member.consumer.raise_epoch(names.topic, 0, 40) == 40
        assert member.consumer.raise_epoch(names.topic, 0, 7) == 41
        assert engine.groups(names.group)[0].epochs == {(names.topic, 0): 41}
        member.consumer.release(names.topic, 0)
        member.owned.clear()
        successor = Member(engine)
        share_out([successor, member], lambda: len(successor.owned) + len(member.owned) == 1, "owned again")
        holder = next(one for one in (member, successor) if one.owned)
        assert holder.owned[names.topic, 0].epoch == 42
        loser = successor if holder is member else member
        with pytest.raises(Fenced):
            loser.consumer.raise_epoch(names.topic, 0, 100)
        loser.consumer.release(names.topic, 0)  # not its own: nothing happens
        assert engine.groups(names.group)[0].epochs == {(names.topic, 0): 42}
        member.consumer.close()
        successor.consumer.close()

    @pytest.mark.parametrize("clean", [True, False])
    def test_the_next_owner_knows_how_it_was_left(self, engine: Engine, clean: bool) -> None:
        make_topic(engine, 1)
        first = Member(engine)
        first.owns(1)
        first.consumer.release(names.topic, 0, clean=clean)
        first.consumer.close()
        second = Member(engine)
        second.owns(1)
        assert second.owned[names.topic, 0].clean is clean
        second.consumer.close()
        third = Member(engine)
        third.owns(1)
        assert third.owned[names.topic, 0].clean is False  # closed without giving back
        third.consumer.close()

    def test_only_the_owner_commits(self, engine: Engine) -> None:
        make_topic(engine, 1)
        first = Member(engine)
        first.owns(1)
        second = Member(engine)
        first.consumer.commit({(names.topic, 0): 5})
        second.consumer.commit({(names.topic, 0): 9})
        eventually(lambda: _committed(engine) == 5, "the owner's commit is known")
        first.consumer.commit({(names.topic, 0): 6})
        eventually(lambda: _committed(engine) == 6, "and no other's was taken before")
        first.consumer.close()
        second.consumer.close()

    def test_joining_what_is_not_there(self, engine: Engine) -> None:
        make_topic(engine)
        for group in (
            ConsumerGroup(group=names.group, topics=("nosuch",)),
            ConsumerGroup(group="a/b", topics=(names.topic,)),
            ConsumerGroup(group=names.group, topics=()),
        ):
            with pytest.raises(ContractError):
                engine.consumer(group)
        assert engine.groups(names.group) == []

    def test_partitions_that_come_later_begin_at_the_start(self, engine: Engine) -> None:
        """A group that began at the end must not skip what is in partitions that were added since."""
        if not hasattr(engine, "grow_topic"):
            pytest.skip("topics do not grow here")
        make_topic(engine, 2)
        member = Member(engine)
        member.owns(2)
        assert engine.grow_topic(names.topic, 4).spec.partitions == 4
        sent = publish(engine, map(message, range(100)))
        assert {receipt.partition for receipt in sent} == {0, 1, 2, 3}
        member.receives(100)
        assert {number: one.original for (_, number), one in member.owned.items()} == {
            0: True,
            1: True,
            2: False,
            3: False,
        }
        assert all(one.begin == 0 for one in member.owned.values())
        member.consumer.close()

    def test_wakeup_ends_a_poll_at_once(self, engine: Engine) -> None:
        make_topic(engine, 1)
        member = Member(engine)
        member.owns(1)
        member.consumer.wakeup()  # before: kept for the next poll
        began = time.monotonic()
        assert member.consumer.poll(DEADLINE_S, records=1, bytes=1) == []
        timer = threading.Timer(0.1, member.consumer.wakeup)
        timer.start()
        assert member.consumer.poll(DEADLINE_S, records=1, bytes=1) == []
        assert time.monotonic() - began < DEADLINE_S / 2
        timer.join()
        member.consumer.close()

    def test_waiting_costs_nothing(self, engine: Engine) -> None:
        make_topic(engine, 4)
        member = Member(engine)
        member.owns(4)
        used = time.process_time()
        member.poll(1.5)
        assert time.process_time() - used < 0.15
        member.consumer.close()


def _committed(engine: Engine) -> int | None:
    """What the test's group has committed of partition 0."""
    found = engine.groups(names.group)
    return found[0].committed.get((names.topic, 0)) if found else None
