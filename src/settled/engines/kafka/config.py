"""From a URL to librdkafka's settings: `kafka://[user:password@]host:port[,host:port...][?property=value&...]`.

What the URL does not say comes from the environment (SETTLED_KAFKA_SASL_PASSWORD for sasl.password), then from the file
named by `?config=FILE` or SETTLED_KAFKA_CONFIG (lines of `property=value`). Secrets leave this module only for the
client. Properties that a promise rests on belong to settled and are refused, each with its reason.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote

import confluent_kafka
from confluent_kafka.admin import AdminClient

from settled.address import parts_of
from settled.engines.kafka import properties
from settled.engines.kafka.log import Log
from settled.errors import ContractError

PREFIX = "SETTLED_KAFKA_"
FILE = "config"  # the one query parameter that is no property of librdkafka's
PORT = 9092
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>\d{1,5}))?\Z")


class Settings:
    """How to reach a cluster. Any thread may use it; it shows no secret in any of its forms.

    addresses   host:port of the brokers to ask first
    shown       the URL as it may be shown: no password, no secret, user names kept
    log         where the clients' log lines go
    """

    def __init__(self, addresses: tuple[str, ...], stated: Mapping[str, str]) -> None:
        self.addresses = addresses
        self._stated = dict(stated)
        self.shown = _shown(addresses, self._stated)
        self.log = Log(tuple(value for name, value in stated.items() if value and properties.is_secret(name)))

    def __repr__(self) -> str:
        return f"Settings({self.shown!r})"

    def __reduce__(self) -> Any:
        raise TypeError("settings hold secrets and are not pickled; give the other process the URL")

    def producer(self, **more: Any) -> dict[str, Any]:
        """For `Producer`. `more` are properties with underscores for dots, and win."""
        return self._with(properties.CONSUMER, more)

    def consumer(self, **more: Any) -> dict[str, Any]:
        """For `Consumer`, which also needs a group_id."""
        return self._with(properties.PRODUCER, more)

    def admin(self, **more: Any) -> dict[str, Any]:
        """For `AdminClient`."""
        return self._with(properties.CONSUMER | properties.PRODUCER, more)

    def stated(self, name: str) -> str | None:
        """What was stated for a property that is no secret, none when nothing was."""
        return None if properties.is_secret(name) else self._stated.get(name)

    def _with(self, others: frozenset[str], more: Mapping[str, Any]) -> dict[str, Any]:
        chosen: dict[str, Any] = {name: value for name, value in self._stated.items() if name not in others}
        chosen.update({properties.named(name): value for name, value in more.items()})
        return {**chosen, "bootstrap.servers": ",".join(self.addresses), "logger": self.log}


def parse(url: str, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings. Raises ContractError naming the property, its value (unless secret) and the remedy."""
    parts = parts_of(url, "engine")
    if parts.scheme != "kafka" or parts.path not in ("", "/") or parts.fragment:
        raise ContractError(
            "this is no address of a Kafka cluster",
            field="engine",
            hint="write kafka://host:port,host:port?property=value; the topic stands in the contract",
        )
    user, _, hosts = parts.netloc.rpartition("@")
    addresses = tuple(_address(each) for each in hosts.split(","))
    said = _query(parts)
    told = _environment(os.environ if environ is None else environ)
    file = said.pop(FILE, None) or told.pop(FILE, None)
    told.pop(FILE, None)
    sources = [(_file(Path(file)), str(file))] if file else []
    sources += [(told, "the environment"), ({**_login(user), **said}, "the URL")]
    stated: dict[str, str] = {}
    for found, source in sources:
        _refuse_owned(found, source)
        _require_accepted(found, source)
        stated.update(found)
    if "sasl.username" in stated:
        stated.setdefault("security.protocol", "SASL_SSL")
        stated.setdefault("sasl.mechanism", stated.pop("sasl.mechanisms", "SCRAM-SHA-512"))
    _require_consistent(stated)
    return Settings(addresses, stated)


def _address(text: str) -> str:
    found = _ADDRESS.match(text)
    port = int(found["port"] or PORT) if found else 0
    if found is None or not 0 < port < 65_536:
        raise ContractError(
            f"{text!r} is no address of a broker", field="engine", value=text, hint="write host:port, several by commas"
        )
    return f"{found['host']}:{port}"


def _login(user: str) -> dict[str, str]:
    if not user:
        return {}
    name, colon, password = user.partition(":")
    login = {"sasl.username": unquote(name)}
    return {**login, "sasl.password": unquote(password)} if colon else login


def _query(parts: SplitResult) -> dict[str, str]:
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise ContractError(f"{name} stands twice in the URL", field=name, hint="leave one of them")
        found[name] = value
    return found


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        properties.named(name.removeprefix(PREFIX).lower()): value
        for name, value in sorted(environ.items())
        if name.startswith(PREFIX)
    }


def _file(path: Path) -> dict[str, str]:
    """Lines of `property=value`; those that begin with # or ! are comments."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ContractError(
            f"the file of Kafka settings cannot be read: {type(error).__name__}",
            field=FILE,
            value=str(path),
            source=str(path),
            hint="name a readable file of lines property=value, in UTF-8",
        ) from None
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, sign, value = (part.strip() for part in line.partition("="))
        if not name or name[0] in "#!":
            continue
        if not sign or name in found:
            fault = "stands twice" if sign else "has no value"
            raise ContractError(
                f"{name if sign else 'this line'} {fault}",
                field=name if sign else FILE,
                source=str(path),
                line=number,
                column=1,
                hint="write one line property=value for each",
            )
        found[name] = value
    return found


def _refuse_owned(found: Mapping[str, str], source: str) -> None:
    for name, value in found.items():
        if name in properties.OWNED:
            why, remedy = properties.OWNED[name]
            raise ContractError(
                f"{name}={_safe(name, value)} ({source}): {why}", field=name, value=_safe(name, value), hint=remedy
            )


def _require_accepted(found: Mapping[str, str], source: str) -> None:
    """Raises for a property that librdkafka does not know, or a value that it does not take."""
    if _fault(found) is None:
        return
    for name, value in found.items():
        fault = _fault({name: value})
        if fault is not None and name not in _TOGETHER:
            raise ContractError(
                f"librdkafka {confluent_kafka.libversion()[0]} does not take {name}={_safe(name, value)} ({source})"
                + ("" if properties.is_secret(name) else f": {fault.strip()}"),
                field=name,
                value=_safe(name, value),
                hint=properties.HINTS.get(name, "see the list of its properties, CONFIGURATION.md of librdkafka"),
            )


def _require_consistent(stated: Mapping[str, str]) -> None:
    """Raises for properties that are good one by one and not together, e.g. TLS without its certificates."""
    fault = _fault(stated)
    if fault is None:
        return
    related = sorted(name for name in stated if name.startswith(("sasl", "ssl", "security", "enable.ssl")))
    text = Log(tuple(value for name, value in stated.items() if properties.is_secret(name))).cleaned(fault)
    raise ContractError(
        f"librdkafka does not take these settings together: {text}",
        field=related[0] if related else "engine",
        hint=f"look at {', '.join(related)}" if related else "see CONFIGURATION.md of librdkafka",
    )


# Good or bad only together with others: a protocol needs a mechanism, a mechanism a user.
_TOGETHER = frozenset({"security.protocol", "sasl.mechanism", "sasl.mechanisms", "sasl.oauthbearer.method"})


def _fault(stated: Mapping[str, str]) -> str | None:
    """What librdkafka says against the properties, none if it takes them. Connects to nothing."""
    try:
        probe: dict[str, Any] = {**stated, "logger": Log(()), "log_level": 0}
        AdminClient(probe)
    except confluent_kafka.KafkaException as error:
        return str(error.args[0].str())
    except (TypeError, ValueError) as error:  # a callback named as if it were a property
        return str(error)
    return None


def _safe(name: str, value: str) -> str:
    return "***" if properties.is_secret(name) else value


def _shown(addresses: tuple[str, ...], stated: Mapping[str, str]) -> str:
    query = "&".join(f"{name}={_safe(name, value)}" for name, value in sorted(stated.items()))
    return f"kafka://{','.join(addresses)}" + (f"?{query}" if query else "")
