"""The SQL of a unit on PostgreSQL, in the dialect of `settled.stores.statements`: set-based, one for each table."""

from __future__ import annotations

from settled.outcome import Outcome

UNIT_LOCKS = 0x5E771ED  # the class of the advisory locks that show whose units are open
NOW = "(extract(epoch FROM statement_timestamp()) * 1000000)::bigint"
PLACE = (
    "SELECT p.id FROM settled_frontier p JOIN settled_consumer c ON c.id = p.consumer_id"
    " JOIN settled_topic t ON t.id = p.topic_id WHERE c.name = ? AND t.name = ? AND p.partition = ?"
)
SHOW = (
    "SELECT set_config('settled.unit', ?, true), pg_try_advisory_xact_lock_shared(?, place)"
    " FROM unnest(CAST(? AS integer[])) AS place"
)
EPOCHS = "SELECT id, epoch FROM settled_frontier WHERE id = ANY(CAST(? AS integer[]))"
SCREEN = "SELECT event_id, outcome FROM settled_inbox WHERE consumer_id = ? AND event_id = ANY(CAST(? AS text[]))"
VERSIONS = (
    "SELECT record_key, version FROM settled_version WHERE consumer_id = ?"
    " AND topic_id = (SELECT id FROM settled_topic WHERE name = ?) AND record_key = ANY(CAST(? AS bytea[]))"
)
MARK = (
    f"INSERT INTO settled_inbox (consumer_id, event_id, outcome, place_id, place_offset, settled_us)"
    f" SELECT ?, e.id, e.outcome, e.place, e.place_offset, {NOW}"
    " FROM unnest(CAST(? AS text[]), CAST(? AS smallint[]), CAST(? AS integer[]), CAST(? AS bigint[]))"
    " AS e(id, outcome, place, place_offset)"  # ON CONFLICT costs two thirds more: it confirms each row in the WAL
)
REPLACE = (
    f"UPDATE settled_inbox SET outcome = ?, settled_us = {NOW}"
    f" WHERE consumer_id = ? AND event_id = ? AND outcome = {int(Outcome.QUARANTINED)}"
)
VERSION = (
    "INSERT INTO settled_version AS held (consumer_id, topic_id, record_key, version)"
    " SELECT ?, t.id, v.record_key, v.version"
    " FROM unnest(CAST(? AS text[]), CAST(? AS bytea[]), CAST(? AS bigint[])) AS v(topic, record_key, version)"
    " JOIN settled_topic t ON t.name = v.topic"
    " ON CONFLICT (consumer_id, topic_id, record_key) DO UPDATE SET version = excluded.version"
    " WHERE excluded.version > held.version"
)
MOVE = (
    "UPDATE settled_frontier AS held SET frontier = greatest(coalesce(held.frontier, 0), moved.frontier),"
    f" updated_us = {NOW},"
    " witness_offset = CASE WHEN moved.witness IS NOT NULL AND moved.frontier >= coalesce(held.frontier, 0)"
    " THEN moved.witness_offset ELSE held.witness_offset END,"
    " witness = CASE WHEN moved.witness IS NOT NULL AND moved.frontier >= coalesce(held.frontier, 0)"
    " THEN moved.witness ELSE held.witness END"
    " FROM (SELECT * FROM unnest(CAST(? AS integer[]), CAST(? AS bigint[]), CAST(? AS bigint[]), CAST(? AS bigint[]),"
    " CAST(? AS bytea[])) AS m(id, epoch, frontier, witness_offset, witness) ORDER BY id) AS moved"
    " WHERE held.id = moved.id AND held.epoch = moved.epoch"
    " AND current_setting('settled.unit', true) = ?"
)
CHARGED = "SELECT place_id, place_offset FROM settled_attempt WHERE place_id = ANY(CAST(? AS integer[]))"
FORGET = "DELETE FROM settled_attempt WHERE place_id = ? AND place_offset = ?"
CHARGE = (
    "INSERT INTO settled_attempt (place_id, place_offset, event_id, attempts) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (place_id, place_offset) DO UPDATE SET attempts = excluded.attempts"
)
