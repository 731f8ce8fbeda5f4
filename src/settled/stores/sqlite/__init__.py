"""The effect store in a SQLite file: the user's own tables and settled's, in one database, under one commit."""

from settled.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
