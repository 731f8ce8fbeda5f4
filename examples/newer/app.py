"""Two consumers compete for the same events, and the older one comes last. A plain upsert lets the old price win; with
`apply_if_newer` the row's own version decides."""

import apsw

import settled

EVENTS = {"first": (1, 30), "second": (2, 35)}  # version, euros


def overwrite(connection, version, euros):
    connection.execute(
        "INSERT INTO plain VALUES ('lamp', ?1, ?2) ON CONFLICT (sku) DO UPDATE SET version = ?1, euros = ?2",
        (version, euros),
    )


def apply(connection, version, euros):
    settled.apply_if_newer(connection, table="checked", key={"sku": "lamp"}, version=version, values={"euros": euros})


def consumer(write, event):
    """One of two competing consumers: a transaction of its own."""
    connection = apsw.Connection("shop.db")
    with connection:
        write(connection, *EVENTS[event])
    connection.close()


if __name__ == "__main__":
    database = apsw.Connection("shop.db")
    for table in ("plain", "checked"):
        database.execute(f"CREATE TABLE IF NOT EXISTS {table} (sku TEXT PRIMARY KEY, version INTEGER, euros INTEGER)")
    for write in (overwrite, apply):
        consumer(write, "second")  # the quicker of the two has the newer event
        consumer(write, "first")
    for table in ("plain", "checked"):
        (row,) = database.execute(f"SELECT euros, version FROM {table}")
        print(f"{table}: {row[0]} euros, version {row[1]}")
