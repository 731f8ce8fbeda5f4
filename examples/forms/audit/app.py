"""An audit fact is a log, read by subscriptions: the archive and the alarm each have all facts, their own progress and
their own trouble. The alarm fails on one account; the archive does not notice.
"""

from pathlib import Path

import apsw

from settled import App, Reject

CONTRACT = Path(__file__).with_name("contract.yaml")
archive = App(CONTRACT, group="archive")
alarm = App(CONTRACT, group="alarm")
FACTS = [("ada", "reader"), ("bob", "admin"), ("eve", "owner"), ("eve", "reader"), ("ada", "admin")]


@archive.setup
def archive_table(tx):
    tx.execute("CREATE TABLE IF NOT EXISTS archive (fact TEXT PRIMARY KEY, account TEXT, role TEXT)")


@archive.handler
def keep(tx, fact):
    tx.execute("INSERT INTO archive VALUES (?, ?, ?)", (fact.id, fact.key.decode(), fact.value.decode()))


@alarm.setup
def alarm_table(tx):
    tx.execute("CREATE TABLE IF NOT EXISTS alarm (account TEXT, role TEXT)")


@alarm.handler
def look(tx, fact):
    if fact.value == b"owner":
        raise Reject("no such role is known here")  # and under `then: park` eve's later facts wait behind it
    if fact.value == b"admin":
        tx.execute("INSERT INTO alarm VALUES (?, ?)", (fact.key.decode(), fact.value.decode()))


if __name__ == "__main__":
    with archive, alarm:
        for number, (account, role) in enumerate(FACTS, 1):
            archive.publish(role, key=account, id=f"fact-{number}")
        for app in (alarm, archive):
            app.drain()  # `settled run` in a process of each one's own
        database = apsw.Connection("settled-effects.db")
        for row in database.execute("SELECT * FROM archive ORDER BY 1"):
            print("archive:", *row)
        for row in database.execute("SELECT * FROM alarm ORDER BY 1"):
            print("alarm:", *row)
        for name, app in (("archive", archive), ("alarm", alarm)):
            told = ", ".join(
                f"{count} {outcome.name.lower()}" for outcome, count in sorted(app.store.tally(name).items())
            )
            print(f"{name}: {told}")
