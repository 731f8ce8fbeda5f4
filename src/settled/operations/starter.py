"""What `settled init` writes: a contract, a handler, sample events and a README that run as they are."""

from __future__ import annotations

from pathlib import Path

from settled.errors import ContractError, Refused

CONTRACT = """\
# What is promised. `settled contract show contract.yaml` prints every field, defaults included.
name: OrderPlaced
transport: {topic: orders, partitions: 4, key: order_id, version: version}
delivery: {group: stock-v1}
poison: {owner: orders-oncall}
"""

APP = '''\
"""Each order reserves its goods once, whatever is sent twice or killed midway."""

from pathlib import Path

from settled import App, Record

app = App(Path(__file__).with_name("contract.yaml"))


@app.setup
def tables(tx):
    tx.execute("CREATE TABLE IF NOT EXISTS reservation (order_id TEXT, version INTEGER, sku TEXT)")


@app.handler
def reserve(tx, record: Record[dict]):
    order = record.payload
    tx.execute("INSERT INTO reservation VALUES (?, ?, ?)", [order["order_id"], order["version"], order["sku"]])
'''

README = """\
# OrderPlaced

One reservation for each version of an order. In this folder:

```sh
settled contract check contract.yaml
settled publish events.jsonl --id-column event_id --time-column at
settled run app.py --mode drain
settled status
```

The reservations are in `settled-effects.db`, table `reservation`; the log is `settled-log.db`. One event of the sample
is there twice, under one id: it counts once. Publish the file again and nothing changes; kill a worker midway and
start it again, and nothing is lost or doubled in that table.

- `contract.yaml`: what is promised. `app.py`: the handler; all it writes through `tx` commits together with the mark
  that the event was settled. `events.jsonl`: ten events.
- `settled run app.py --workers 2` works until it is stopped. `settled topic tail orders` shows what is in the log.
- `settled quarantine ls` lists what could not be settled.
"""


def starter_files() -> dict[str, str]:
    """The files by name."""
    return {"contract.yaml": CONTRACT, "app.py": APP, "events.jsonl": _events(), "README.md": README}


def write_starter(folder: Path) -> list[Path]:
    """Write them into a new or empty folder. Raises Refused when something is in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise Refused(f"{folder} is not empty", hint="name a new folder; nothing was written")
        written = []
        for name, text in starter_files().items():
            path = folder / name
            path.write_text(text, encoding="utf-8")
            written.append(path)
        return written
    except (OSError, ValueError) as error:
        raise ContractError(f"{folder} cannot be written: {error}", field="DIR", hint="name another folder") from None


def _events() -> str:
    lines = [
        f'{{"event_id": "e-{n}", "order_id": "o-{n % 3 + 1}", "version": {n // 3 + 1}, '
        f'"at": "2030-01-31T12:00:0{n}Z", "sku": "sku-{n % 2}"}}'
        for n in range(9)
    ]
    return "\n".join([*lines, lines[-1]]) + "\n"
