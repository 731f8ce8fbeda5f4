"""Calls outside the transaction: at least one call, one recorded outcome, whatever dies in between."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import settled
from settled.app import App
from settled.calls import key_of
from settled.errors import ContractError, Reject, Retry
from settled.outcome import Outcome
from settled.record import Record
from settled.store import Selection, Tx
from settled.testing.postgres import database

SECTIONS: dict[str, Any] = {
    "delivery": {"lease": "1s", "grace": "10s"},
    "poison": {"attempts": {"defect": 3}, "backoff": {"first": "10ms", "most": "20ms"}},
}
WINDOWS = ("intent-recorded", "call-made", "result-recorded")
Make = Callable[..., App]


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/effects.db"
    else:
        with database() as url:
            yield url


def make_app(folder: Path, store_url: str, handler: Callable[..., Any], **more: Any) -> App:
    app = App(topic="t", group="g", engine=f"sqlite:///{folder}/log.db", store=store_url, **{**SECTIONS, **more})
    app.handler(batch=more.pop("batch", False))(handler)
    app.setup(lambda tx: tx.execute("CREATE TABLE IF NOT EXISTS effects (event_id VARCHAR(99), receipt VARCHAR(99))"))
    return app


@pytest.fixture
def make(tmp_path: Path, store_url: str) -> Iterator[Make]:
    made: list[App] = []

    def app(handler: Callable[..., Any], **more: Any) -> App:
        made.append(make_app(tmp_path, store_url, handler, **more))
        return made[-1]

    yield app
    for each in made:
        each.close()


def write(tx: Tx, record: Record, receipt: str) -> None:
    tx.execute(f"INSERT INTO effects (event_id, receipt) VALUES ('{record.id}', '{receipt}')")


def effects(app: App) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    app.store.prepare(lambda tx: found.extend(map(tuple, tx.execute("SELECT * FROM effects ORDER BY 1"))))
    return found


class Bank:
    """What is outside: it remembers calls by their key, in a file, as a receiver of idempotent calls does."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "bank.jsonl"

    @property
    def calls(self) -> list[str]:
        return [json.loads(line) for line in self._file.read_text().splitlines()] if self._file.exists() else []

    def charge(self, key: str) -> dict[str, str]:
        with self._file.open("a") as file:
            file.write(json.dumps(key) + "\n")
        return {"receipt": f"r-{key[:8]}"}

    def lookup(self, key: str) -> dict[str, str] | None:
        return {"receipt": f"r-{key[:8]}"} if key in self.calls else None


def paying(bank: Bank, policy: str, after: Callable[[Record], None] = lambda record: None) -> Callable[..., None]:
    def pay(tx: Tx, record: Record) -> None:
        write(tx, record, "begun")
        lookup = bank.lookup if policy == "reconcile" else None
        found = settled.external(tx, "charge", bank.charge, policy=policy, lookup=lookup)  # type: ignore[arg-type]
        after(record)
        write(tx, record, found["receipt"])

    return pay


def test_a_recorded_result_is_returned_without_another_call(make: Make, tmp_path: Path) -> None:
    bank, failures = Bank(tmp_path), iter([True, True, False, False])

    def fail(record: Record) -> None:
        if next(failures):
            raise KeyError("after the call")

    app = make(paying(bank, "quarantine", fail))
    app.publish(b"x", key="k", id="e1")
    app.publish(b"x", key="k", id="e1")
    app.publish(b"x", key="k", id="e2")
    app.drain()
    keys = [key_of("g", each, "charge") for each in ("e1", "e2")]
    assert bank.calls == keys
    assert effects(app) == [
        ("e1", "begun"),
        ("e1", f"r-{keys[0][:8]}"),
        ("e2", "begun"),
        ("e2", f"r-{keys[1][:8]}"),
    ]


@pytest.mark.parametrize("policy", ["repeat", "reconcile", "quarantine"])
@pytest.mark.parametrize("window", WINDOWS)
def test_a_death_in_each_window(make: Make, tmp_path: Path, store_url: str, window: str, policy: str) -> None:
    """The process kills itself in the window; the next one goes on as the policy says."""
    bank = Bank(tmp_path)
    app = make(paying(bank, policy))
    app.publish(b"x", key="k", id="e1")
    died = subprocess.run(
        [sys.executable, __file__, str(tmp_path), store_url, policy, window],
        capture_output=True,
        timeout=60,
        env={"PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert died.returncode == -9, died.stderr.decode()
    before = len(bank.calls)
    assert before == (0 if window == "intent-recorded" else 1)
    app.drain()
    key = key_of("g", "e1", "charge")
    if policy == "quarantine" and window != "result-recorded":
        assert len(bank.calls) == before
        assert effects(app) == []
        [entry] = app.store.quarantine.entries(app.store.quarantine.select(Selection(consumer="g")))
        assert key in entry.failure.message
        app.store.quarantine.request([entry.number], reason="it was not charged", who="me")
        worker = app.worker()
        worker.run(
            drained=lambda: not app.store.quarantine.select(Selection(consumer="g", states=("held", "requested")))
        )
    made_again = {"repeat": 1, "reconcile": 1 - before, "quarantine": 1}[policy] if window != "result-recorded" else 0
    assert bank.calls == [key] * (before + made_again)
    assert effects(app) == [("e1", "begun"), ("e1", f"r-{key[:8]}")]
    assert app.store.tally("g") == {Outcome.APPLIED: 1}


def test_retry_and_reject_say_that_no_call_was_made(make: Make, tmp_path: Path) -> None:
    raised: list[str] = []

    def pay(tx: Tx, record: Record) -> None:
        def call(key: str) -> str:
            raised.append(record.id)
            if record.id == "never":
                raise Reject("no such account")
            if raised.count(record.id) == 1:
                raise Retry("the bank is closed", after=0.01)
            return "paid"

        write(tx, record, settled.external(tx, "charge", call, policy="quarantine"))

    app = make(pay)
    for event_id in ("later", "never"):
        app.publish(b"x", key=event_id, id=event_id)
    app.drain()
    assert effects(app) == [("later", "paid")]
    assert sorted(raised) == ["later", "later", "never"]
    assert app.store.tally("g") == {Outcome.APPLIED: 1, Outcome.QUARANTINED: 1}


def test_an_ambiguous_error_of_the_call_is_left_to_the_policy(make: Make, tmp_path: Path) -> None:
    calls: list[str] = []

    def pay(tx: Tx, record: Record) -> None:
        def call(key: str) -> None:
            calls.append(record.id)
            raise TimeoutError("no answer")

        settled.external(tx, "charge", call)

    app = make(pay)
    app.publish(b"x", key="k", id="e1")
    app.drain()
    assert calls == ["e1"]
    [entry] = app.store.quarantine.entries(app.store.quarantine.select(Selection(consumer="g")))
    assert entry.failure.error.endswith("Reject")
    assert "may have been called before" in entry.failure.message


def test_the_contracts_word_wins(make: Make, tmp_path: Path) -> None:
    bank, failures = Bank(tmp_path), iter([True, False])

    def pay(tx: Tx, record: Record) -> None:
        def call(key: str) -> dict[str, str]:
            bank.charge(key)
            if next(failures):
                raise TimeoutError("no answer")
            return {}

        settled.external(tx, "charge", call, policy="quarantine")
        write(tx, record, "paid")

    app = make(pay, external={"repeat": ["charge"]})
    app.publish(b"x", key="k", id="e1")
    app.drain()
    assert len(bank.calls) == 2
    assert effects(app) == [("e1", "paid")]


def test_an_async_handler_awaits_it(make: Make) -> None:
    async def call(key: str) -> str:
        return key

    async def pay(tx: Any, record: Record) -> None:
        found = await settled.external(tx, "charge", call, policy="repeat")
        await tx.execute(f"INSERT INTO effects (event_id, receipt) VALUES ('{record.id}', '{found}')")

    app = make(pay)
    app.publish(b"x", key="k", id="e1")
    app.drain()
    assert effects(app) == [("e1", key_of("g", "e1", "charge"))]


def test_misuse_is_refused_with_the_remedy(make: Make) -> None:
    told: list[ContractError] = []

    def pay(tx: Tx, record: Record) -> None:
        for name, options in (
            ("a", {"policy": "sometimes"}),
            ("b", {"policy": "reconcile"}),
            ("c\0", {"policy": "repeat"}),
        ):
            with pytest.raises(ContractError) as refused:
                settled.external(tx, name, lambda key: None, **options)  # type: ignore[call-overload]
            told.append(refused.value)
        with pytest.raises(ContractError) as refused:
            settled.external(tx, "long", lambda key: "x" * 70_000, policy="repeat")
        told.append(refused.value)

    app = make(pay)
    app.publish(b"x", key="k", id="e1")
    app.drain()
    assert [each.field for each in told] == ["policy", "lookup", "name", "result"]
    assert all(each.hint for each in told)
    with pytest.raises(ContractError, match="tx of a handler"):
        settled.external(object(), "a", lambda key: None)  # type: ignore[call-overload]


def test_a_handler_of_whole_groups_names_the_record(tmp_path: Path, store_url: str) -> None:
    told: list[str] = []

    def pay(tx: Tx, records: list[Record]) -> None:
        with pytest.raises(ContractError) as refused:
            settled.external(tx, "charge", lambda key: "paid", policy="repeat")
        told.append(refused.value.field)
        for record in records:
            write(tx, record, settled.external(tx, "charge", lambda key: "paid", policy="repeat", record=record))

    app = App(topic="t", group="g", engine=f"sqlite:///{tmp_path}/log.db", store=store_url, **SECTIONS)
    app.handler(batch=True)(pay)
    app.setup(lambda tx: tx.execute("CREATE TABLE IF NOT EXISTS effects (event_id VARCHAR(99), receipt VARCHAR(99))"))
    app.publish(b"x", key="k", id="e1")
    app.publish(b"x", key="k", id="e2")
    app.drain()
    assert effects(app) == [("e1", "paid"), ("e2", "paid")]
    assert set(told) == {"record"}
    app.close()


def test_what_is_known_goes_with_the_marks(make: Make, tmp_path: Path) -> None:
    bank = Bank(tmp_path)
    app = make(paying(bank, "repeat"))
    app.publish(b"x", key="k", id="e1")
    app.drain()
    while app.store.prune("g", older_than_s=-10):
        pass
    assert app.store.tally("g") == {}
    app.publish(b"x", key="k", id="e1")
    app.drain()
    assert len(bank.calls) == 2


if __name__ == "__main__":  # a worker that kills itself in a window
    import os
    import signal

    from settled import windows

    FOLDER, URL, POLICY, WINDOW = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
    windows.install(lambda window: os.kill(os.getpid(), signal.SIGKILL) if window == WINDOW else None)
    make_app(FOLDER, URL, paying(Bank(FOLDER), POLICY)).drain()
