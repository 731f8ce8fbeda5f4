"""The effect store in PostgreSQL: the user's own tables and settled's (in a schema of their own), under one commit.
Needs the extra `settled[postgres]`; nothing imports this package before a URL asks for it.
"""

from settled.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
