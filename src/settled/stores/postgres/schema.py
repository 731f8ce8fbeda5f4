"""settled's own tables in PostgreSQL, in a schema of their own; see `settled.stores.sqlite.schema` for what each holds.

Each step is applied once, in order, under an advisory lock. Plain tables; no extension, no superuser.
"""

from __future__ import annotations

from settled.errors import ContractError, Refused

STEPS: tuple[str, ...] = (
    """
CREATE TABLE {schema}.consumer (
  id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text NOT NULL UNIQUE
);
CREATE TABLE {schema}.topic (
  id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text NOT NULL UNIQUE
);
CREATE TABLE {schema}.frontier (
  id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  consumer_id integer NOT NULL,
  topic_id integer NOT NULL,
  partition integer NOT NULL,
  identity text NOT NULL,
  epoch bigint NOT NULL,
  owner text NOT NULL,
  frontier bigint,
  witness_offset bigint,
  witness bytea,
  updated_us bigint NOT NULL,
  UNIQUE (consumer_id, topic_id, partition)
) WITH (fillfactor = 50);
CREATE TABLE {schema}.inbox (
  consumer_id integer NOT NULL,
  place_id integer NOT NULL,
  place_offset bigint NOT NULL,
  settled_us bigint NOT NULL,
  outcome smallint NOT NULL,
  event_id text COLLATE "C" NOT NULL,
  PRIMARY KEY (consumer_id, event_id)
);
CREATE TABLE {schema}.version (
  consumer_id integer NOT NULL,
  topic_id integer NOT NULL,
  record_key bytea NOT NULL,
  version bigint NOT NULL,
  PRIMARY KEY (consumer_id, topic_id, record_key)
) WITH (fillfactor = 70);
CREATE TABLE {schema}.attempt (
  place_id integer NOT NULL,
  place_offset bigint NOT NULL,
  event_id text NOT NULL,
  attempts text NOT NULL,
  PRIMARY KEY (place_id, place_offset)
);
CREATE TABLE {schema}.quarantine (
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  consumer_id integer NOT NULL,
  place_id integer NOT NULL,
  place_offset bigint NOT NULL,
  record_key bytea,
  headers bytea NOT NULL,
  event_id text NOT NULL,
  type text,
  version bigint,
  event_time_us bigint,
  correlation_id text,
  causation_id text,
  accepted_us bigint NOT NULL,
  value_bytes bigint NOT NULL,
  value bytea,
  failure text NOT NULL,
  attempts text NOT NULL,
  fingerprint text NOT NULL,
  error text NOT NULL,
  message text NOT NULL,
  owner text NOT NULL,
  code_version text NOT NULL,
  state text NOT NULL,
  quarantined_us bigint NOT NULL,
  parked boolean NOT NULL,
  marked boolean NOT NULL
);
CREATE UNIQUE INDEX quarantine_open ON {schema}.quarantine (place_id, place_offset)
  WHERE state IN ('held', 'requested');
CREATE INDEX quarantine_requested ON {schema}.quarantine (place_id, place_offset) WHERE state = 'requested';
CREATE TABLE {schema}.quarantine_value (number bigint PRIMARY KEY, value bytea NOT NULL);
CREATE TABLE {schema}.quarantine_note (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  number bigint NOT NULL,
  noted_us bigint NOT NULL,
  who text NOT NULL,
  note text NOT NULL
);
CREATE INDEX quarantine_note_number ON {schema}.quarantine_note (number);
CREATE TABLE {schema}.gap (
  consumer text NOT NULL,
  topic text NOT NULL,
  partition integer NOT NULL,
  first_offset bigint NOT NULL,
  next_offset bigint NOT NULL,
  found_us bigint NOT NULL,
  PRIMARY KEY (consumer, topic, partition, first_offset, next_offset)
);
CREATE TABLE {schema}.report (
  consumer text NOT NULL,
  member text NOT NULL,
  host text NOT NULL,
  pid integer NOT NULL,
  state text NOT NULL,
  why text NOT NULL,
  updated_us bigint NOT NULL,
  PRIMARY KEY (consumer, member)
);
""",
)
VERSION = len(STEPS)
META = "CREATE TABLE IF NOT EXISTS {schema}.meta (name text PRIMARY KEY, value text NOT NULL);\n"
SET_VERSION = (
    "INSERT INTO {schema}.meta (name, value) VALUES ('version', '{version}')"
    " ON CONFLICT (name) DO UPDATE SET value = excluded.value;\n"
)


def steps_from(found: int, schema: str) -> list[str]:
    """The statements that bring a schema of version `found` up to date; `schema` is quoted."""
    wanted = [META, *STEPS[found:], SET_VERSION] if found < VERSION else []
    return [step.format(schema=schema, version=VERSION) for step in wanted]


def whole(schema: str) -> str:
    """All of it as one script, for those who run their migrations themselves."""
    return f"BEGIN;\nCREATE SCHEMA IF NOT EXISTS {schema};\n" + "".join(steps_from(0, schema)) + "COMMIT;\n"


def refuse_newer(found: int) -> None:
    if found > VERSION:
        raise Refused(
            f"the store's schema has version {found}, this release of settled knows {VERSION}",
            hint="run the newer release of settled that made it; a downgrade is not supported",
        )


def require(found: int) -> None:
    refuse_newer(found)
    if found < VERSION:
        raise ContractError(
            "settled's tables are not in this database" if not found else f"settled's tables are of version {found}",
            field="store",
            hint="run: settled store migrate",
        )
