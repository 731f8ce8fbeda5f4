"""settled store: settled's own tables in the database that holds the effects."""

from __future__ import annotations

from typing import Annotated

import typer

from settled.cli.options import StoreOption
from settled.cli.output import say, write

verbs = typer.Typer(help="The effect store.", no_args_is_help=True)


@verbs.callback()
def _store() -> None:
    """The effect store."""


@verbs.command("migrate")
def migrate(
    print_sql: Annotated[bool, typer.Option("--print-sql", help="Print the statements and run nothing.")] = False,
    store: StoreOption = None,
) -> None:
    """Create settled's tables, or bring them up to date. Safe when several do it at once."""
    from settled import connect
    from settled.cli.opening import store_address
    from settled.operations.migration import migration_sql

    address = store_address(store)
    if print_sql and address.url.startswith("sqlite:"):
        write(migration_sql(None).rstrip())
        return
    opened = connect.store(address.url)
    try:
        if print_sql:
            write(migration_sql(opened).rstrip())
            return
        opened.migrate()
    finally:
        opened.close()
    say(f"settled's tables in {address.shown} are up to date")
