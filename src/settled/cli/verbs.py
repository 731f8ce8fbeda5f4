"""All verbs, by name. The modules named here import nothing heavy until a verb runs."""

from __future__ import annotations

from typing import Any

import typer

from settled.cli import (
    contract,
    demo,
    doctor,
    drill,
    init,
    log,
    outbox,
    publish,
    quarantine,
    run,
    status,
    store,
    token,
    topic,
)


def command() -> Any:
    """The command line as one object, ready for `main`."""
    app = typer.Typer(
        name="settled",
        help="Durable messaging whose unit of progress is the durable effect.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help: rich help takes longer to import than all else together
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_settled)
    app.command("demo")(demo.demo)
    for name, verb in (
        ("init", init.init),
        ("publish", publish.publish),
        ("run", run.run),
        ("status", status.status),
        ("doctor", doctor.doctor),
        ("demo", demo.demo),
        ("drill", drill.drill),
    ):
        app.command(name)(verb)
    for name, verbs in (
        ("topic", topic.verbs),
        ("group", status.group_verbs),
        ("contract", contract.verbs),
        ("quarantine", quarantine.verbs),
        ("outbox", outbox.verbs),
        ("store", store.verbs),
        ("log", log.verbs),
        ("token", token.verbs),
    ):
        app.add_typer(verbs, name=name)
    return typer.main.get_command(app)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        from settled.cli.output import write

        write(f"settled {version('settled')}")
        raise typer.Exit


def _settled(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Durable messaging whose unit of progress is the durable effect."""
