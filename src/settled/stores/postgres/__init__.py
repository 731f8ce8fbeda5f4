"""The effect store in PostgreSQL: the user's own tables and settled's (in a schema of their own), under one commit.
Needs the extra `settled[postgres]`; nothing else in settled imports this package before a URL asks for it.
"""

from settled.errors import ContractError

try:
    import psycopg  # noqa: F401
except ImportError as missing:
    raise ContractError(
        "the PostgreSQL store needs psycopg", field="store", hint="pip install 'settled[postgres]'"
    ) from missing

from settled.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
