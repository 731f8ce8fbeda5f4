"""From a URL to pika's parameters: `rabbitmq://[user:password@]host[:port][,host[:port]...][/vhost][?name=value&...]`,
`rabbitmqs://` for TLS.

The password may come from SETTLED_RABBITMQ_PASSWORD instead. Secrets leave this module only for the client.

connect_timeout   seconds for one attempt to connect and log in; 10
publish_timeout   seconds for which a message without a confirm is sent again or waited for; 60
prefetch          most claims of a member that are not acknowledged, per topic; 2000
delivery_limit    deliveries after which the broker moves a message to the dead queue; 1000
ca_file, cert_file, key_file   for TLS, in PEM
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

import pika

from settled.address import parts_of
from settled.errors import ContractError

PASSWORD = "SETTLED_RABBITMQ_PASSWORD"
PORT, TLS_PORT = 5672, 5671
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>\d{1,5}))?\Z")
_NUMBERS: dict[str, tuple[float, float, float]] = {  # usual, least, most
    "connect_timeout": (10.0, 0.1, 600.0),
    "publish_timeout": (60.0, 0.1, 86_400.0),
    "prefetch": (2_000.0, 1.0, 65_535.0),
    "delivery_limit": (1_000.0, 20.0, 1e9),
}
_FILES = ("ca_file", "cert_file", "key_file")


class Settings:
    """How to reach a broker. Any thread may use it; it shows no secret in any of its forms.

    addresses   host:port of the nodes, tried in turn
    shown       the URL as it may be shown: no password
    """

    def __init__(
        self,
        addresses: tuple[tuple[str, int], ...],
        vhost: str,
        user: str,
        password: str,
        numbers: Mapping[str, float],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._addresses, self._tls = addresses, tls
        self._credentials = pika.PlainCredentials(user, password)
        self.vhost, self.user = vhost, user
        self.addresses = tuple(f"{host}:{port}" for host, port in addresses)
        self.connect_s = numbers["connect_timeout"]
        self.publish_s = numbers["publish_timeout"]
        self.prefetch = int(numbers["prefetch"])
        self.delivery_limit = int(numbers["delivery_limit"])
        scheme = "rabbitmqs" if tls is not None else "rabbitmq"
        login = f"{quote(user, safe='')}@"
        self.shown = f"{scheme}://{login}{','.join(self.addresses)}/{quote(vhost, safe='') if vhost != '/' else ''}"

    def __repr__(self) -> str:
        return f"Settings({self.shown!r})"

    def __reduce__(self) -> Any:
        raise TypeError("settings hold secrets and are not pickled; give the other process the URL")

    def parameters(self, turn: int, name: str, *, heartbeat_s: int = 20) -> pika.ConnectionParameters:
        """To connect to the next address; `turn` counts attempts. `name` is what the broker's lists show."""
        host, port = self._addresses[turn % len(self._addresses)]
        return pika.ConnectionParameters(
            host=host.strip("[]"),
            port=port,
            virtual_host=self.vhost,
            credentials=self._credentials,
            heartbeat=heartbeat_s,
            socket_timeout=self.connect_s,
            stack_timeout=self.connect_s,
            blocked_connection_timeout=None,
            client_properties={"connection_name": name},
            ssl_options=None if self._tls is None else pika.SSLOptions(self._tls, host.strip("[]")),
        )


def parse(url: str, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings. Raises ContractError naming what is wrong, and the remedy."""
    parts = parts_of(url, "engine")
    if parts.scheme not in ("rabbitmq", "rabbitmqs") or parts.fragment or parts.path.count("/") > 1:
        raise ContractError(
            "this is no address of a RabbitMQ broker",
            field="engine",
            hint="write rabbitmq://user:password@host:port/vhost; the queue stands in the contract",
        )
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    secret = unquote(password) or (os.environ if environ is None else environ).get(PASSWORD, "") or "guest"
    tls = parts.scheme == "rabbitmqs"
    addresses = tuple(_address(each, TLS_PORT if tls else PORT) for each in hosts.split(","))
    vhost = unquote(parts.path[1:]) or "/"
    said = _query(parts.query)
    numbers = {name: _number(name, said.pop(name, None)) for name in _NUMBERS}
    files = {name: said.pop(name) for name in _FILES if name in said}
    for name in said:
        known = ", ".join([*_NUMBERS, *_FILES])
        raise ContractError(f"{name} is no setting of this engine", field=name, hint=f"there are {known}")
    if files and not tls:
        raise ContractError(f"{next(iter(files))} says nothing without TLS", field="engine", hint="write rabbitmqs://")
    return Settings(addresses, vhost, unquote(user) or "guest", secret, numbers, _context(files) if tls else None)


def _address(text: str, port: int) -> tuple[str, int]:
    found = _ADDRESS.match(text)
    number = int(found["port"] or port) if found else 0
    if found is None or not 0 < number < 65_536:
        raise ContractError(
            f"{text!r} is no address of a node", field="engine", value=text, hint="write host:port, several by commas"
        )
    return found["host"], number


def _query(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        if name in found:
            raise ContractError(f"{name} stands twice in the URL", field=name, hint="leave one of them")
        found[name] = value
    return found


def _number(name: str, text: str | None) -> float:
    usual, least, most = _NUMBERS[name]
    if text is None:
        return usual
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not least <= number <= most:
        raise ContractError(
            f"{name}={text} is not from {least:g} to {most:g}", field=name, value=text, hint=f"{usual:g} is usual"
        )
    return number


def _context(files: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=files.get("ca_file"))
        if "cert_file" in files:
            context.load_cert_chain(files["cert_file"], files.get("key_file"))
    except (OSError, ssl.SSLError) as error:
        raise ContractError(
            f"the certificates cannot be read: {type(error).__name__}",
            field="ca_file",
            value=str(dict(files)),
            hint="name readable PEM files in ca_file, cert_file and key_file",
        ) from error
    return context
