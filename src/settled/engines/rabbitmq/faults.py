"""From pika's errors to settled's, by class and reply code alone: who must act, and what is to be done about it."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Mapping
from typing import Any

from pika import exceptions as amqp

from settled.engines.rabbitmq.settings import Settings
from settled.errors import ContractError, SettledError, TooLarge, Unavailable, Unsupported

TOO_LARGE, ACCESS_REFUSED, NOT_FOUND, LOCKED, PRECONDITION_FAILED = 311, 403, 404, 405, 406
RESOURCE_ERROR, NOT_ALLOWED, NOT_IMPLEMENTED, INTERNAL_ERROR = 506, 530, 540, 541
# What pika makes of a connection that ends while it is opened: it may be a guess, the cable may have been pulled.
_IN_HANDSHAKE = (
    amqp.IncompatibleProtocolError,
    amqp.ProbableAuthenticationError,
    amqp.ProbableAccessDeniedError,
    amqp.AuthenticationError,
)
_CLOSED = re.compile(r"ConnectionClosedByBroker: \((\d+)\)")
OLDEST = (3, 10)  # quorum queues with a delivery limit and dead letters that are not dropped on the way


def code_of(error: BaseException | None) -> int:
    """The broker's reply code, 0: it said none. Of a connection that ended while it was opened pika keeps what it ended
    with as a text of its own, class and code first."""
    if isinstance(error, _IN_HANDSHAKE):
        found = _CLOSED.match(str(error.args[0]) if error.args else "")
        return int(found[1]) if found else 0
    code = getattr(error, "reply_code", 0)
    return code if isinstance(code, int) else 0


def translate(error: BaseException, what: str, settings: Settings, *, topic: str = "") -> SettledError:
    """The error to raise. `what` says in a few words what failed, e.g. "reading topic 'orders'"."""
    if isinstance(error, SettledError):
        return error
    refused = _refused(error, what, settings)
    if refused is not None:
        return refused
    code, said = code_of(error), str(getattr(error, "reply_text", "")) or type(error).__name__
    match code:
        case 404:
            return absent(topic) if topic else ContractError(f"{what}: {said}", field="topic", hint="make it first")
        case 403:
            return ContractError(
                f"{what}: user {settings.user!r} has no right to it ({code})",
                field="permissions",
                hint=f"rabbitmqctl set_permissions -p {settings.vhost} {settings.user} '.*' '.*' '.*', or narrower: "
                "docs/rabbitmq.md lists the names",
            )
        case 406:
            return ContractError(f"{what}: {said}", field="topic", value=topic, hint="nothing was changed")
        case 311:
            return TooLarge(f"{what}: {said}", field="value", hint="send less, or raise the broker's max_message_size")
        case 540:
            return Unsupported(f"{what}: {said}", field="engine", hint="settled needs RabbitMQ 3.10 or newer")
    asked = ", ".join(settings.addresses)
    if isinstance(error, _IN_HANDSHAKE):
        return Unavailable(
            f"{what}: it ended while it was being opened, {said} (nodes asked: {asked})",
            hint="it is tried again; if it stays so, check the port (5672; 5671 with rabbitmqs://) and the login",
        )
    return Unavailable(
        f"{what}: {said} (nodes asked: {asked})",
        hint="look whether the broker runs and listens there; it is tried again and goes on by itself",
    )


def _refused(error: BaseException, what: str, settings: Settings) -> SettledError | None:
    """What a person must change before a connection comes about, none: it is something else."""
    of_connection = isinstance(error, (amqp.ConnectionClosedByBroker, *_IN_HANDSHAKE))
    if of_connection and code_of(error) == ACCESS_REFUSED:
        return ContractError(
            f"{what}: the broker does not accept the login of user {settings.user!r}",
            field="engine",
            hint="check user and password; a new broker's `guest` may log in from its own machine only",
        )
    if code_of(error) == NOT_ALLOWED:
        return ContractError(
            f"{what}: user {settings.user!r} may not use the virtual host {settings.vhost!r}, or there is none",
            field="engine",
            value=settings.vhost,
            hint=f"rabbitmqctl add_vhost {settings.vhost}; rabbitmqctl set_permissions -p {settings.vhost} "
            f"{settings.user} '.*' '.*' '.*'",
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return ContractError(
            f"{what}: the broker's certificate is not accepted ({error.verify_message})",
            field="ca_file",
            hint="name the authority that signed it in ?ca_file=, and the host as the certificate does",
        )
    return None


def absent(topic: str) -> ContractError:
    return ContractError(
        f"there is no topic {topic!r}",
        field="topic",
        value=topic,
        hint="create it first: `settled publish --contract` and a worker do, from the contract",
    )


def require_broker(properties: Mapping[str, Any]) -> None:
    """Raises Unsupported for a server without what quorum queues need, by what it says of itself."""
    product, version = str(properties.get("product", "")), str(properties.get("version", ""))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if product != "RabbitMQ" or numbers < OLDEST:
        raise Unsupported(
            f"this broker is {product or 'of an unknown make'} {version}: it has no quorum queues as they are needed",
            field="engine",
            hint="settled needs RabbitMQ 3.10 or newer",
        )


# What a connection or a channel may end with.
ERRORS = (amqp.AMQPError, OSError, socket.gaierror, ssl.SSLError)
