"""kafka:// URLs: what they say, what they may not say, and what of them is never shown. No broker is asked."""

import logging
import pickle
from pathlib import Path

import pytest

from settled.engines.kafka import properties
from settled.engines.kafka.config import parse
from settled.engines.kafka.log import Log
from settled.errors import ContractError

SECRET = "hunter2-säcret"


def test_addresses_and_properties() -> None:
    settings = parse("kafka://one:1,two,[::1]:3?client.id=shop&fetch.max.bytes=2000000&retries=7", {})
    assert settings.addresses == ("one:1", "two:9092", "[::1]:3")
    assert settings.producer(linger_ms=5) == {
        "bootstrap.servers": "one:1,two:9092,[::1]:3",
        "client.id": "shop",
        "retries": "7",
        "linger.ms": 5,
        "logger": settings.log,
    }
    assert settings.consumer(group_id="g")["fetch.max.bytes"] == "2000000"
    assert "retries" not in settings.consumer(group_id="g")
    assert set(settings.admin()) == {"bootstrap.servers", "client.id", "logger"}
    assert settings.stated("client.id") == "shop"


def test_a_user_in_the_url_means_sasl_over_tls() -> None:
    said = parse("kafka://ann:p%40ss%2F@b:1", {}).admin()
    assert said["sasl.username"] == "ann"
    assert said["sasl.password"] == "p@ss/"
    assert (said["security.protocol"], said["sasl.mechanism"]) == ("SASL_SSL", "SCRAM-SHA-512")
    plain = parse("kafka://ann:x@b:1?security.protocol=SASL_PLAINTEXT&sasl.mechanism=PLAIN", {}).admin()
    assert (plain["security.protocol"], plain["sasl.mechanism"]) == ("SASL_PLAINTEXT", "PLAIN")


def test_the_url_goes_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# ours\n! theirs\n\nclient.id = file\nclient.rack=r-file\nreconnect.backoff.ms=50\n")
    environ = {"SETTLED_KAFKA_CLIENT_RACK": "r-env", "SETTLED_KAFKA_RECONNECT_BACKOFF_MS": "60", "OTHER": "x"}
    said = parse(f"kafka://b:1?config={file}&reconnect.backoff.ms=70", environ).consumer()
    assert said["client.id"] == "file"
    assert said["client.rack"] == "r-env"
    assert said["reconnect.backoff.ms"] == "70"
    named = parse("kafka://b:1", {"SETTLED_KAFKA_CONFIG": str(file)})
    assert named.stated("client.id") == "file"


def test_a_secret_is_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    settings = parse(f"kafka://ann:{SECRET}@b:1", {"SETTLED_KAFKA_SSL_KEY_PASSWORD": SECRET + "2"})
    assert settings.producer()["sasl.password"] == SECRET
    shown = [repr(settings), str(settings), settings.shown, repr(settings.log), f"{settings!r}"]
    assert not any(SECRET in text for text in shown)
    assert "sasl.username=ann" in settings.shown
    assert settings.stated("sasl.password") is None
    with pytest.raises(TypeError, match="secrets"):
        pickle.dumps(settings)
    with caplog.at_level(logging.DEBUG, logger="settled.kafka"):
        settings.log.log(logging.DEBUG, "%s [%s] %s", "CONF", "rdkafka#1", f"[thrd:app]: {SECRET} and {SECRET}2")
    assert SECRET not in caplog.text
    assert "*** and ***" in caplog.text


@pytest.mark.parametrize(
    "url",
    [
        f"kafka://ann:{SECRET}@b:1?acks=1",
        f"kafka://b:1?sasl.passwrd={SECRET}",
        f"kafka://b:1?sasl.jaas.config={SECRET}",
        f"kafka://b:1?security.protocol=ssl&ssl.key.pem={SECRET}",
        f"kafka://ann:{SECRET}@b:1?sasl.mechanism=GSSAPI&security.protocol=SASL_SSL",
        f"kafka://ann:{SECRET}@b:0",
        f"kafka://ann:{SECRET}@b:1/orders",
    ],
)
def test_no_error_shows_a_secret(url: str) -> None:
    with pytest.raises(ContractError) as refused:
        parse(url, {})
    assert SECRET not in f"{refused.value} {refused.value!r} {refused.value.value} {refused.value.hint}"
    assert refused.value.hint


@pytest.mark.parametrize(
    ("url", "field", "value", "word"),
    [
        ("kafka://b:1?no.such.property=7", "no.such.property", "7", "CONFIGURATION.md"),
        ("kafka://b:1?socket.timeout.ms=5", "socket.timeout.ms", "5", "range"),
        ("kafka://b:1?statistics.interval.ms=soon", "statistics.interval.ms", "soon", "Invalid value"),
        ("kafka://b:1?error_cb=x", "error_cb", "x", "callable"),
        ("kafka://b:1?value.serializer=x", "value.serializer", "x", "values are bytes"),
        ("kafka://b:1?client.id=a&client.id=b", "client.id", None, "twice"),
        ("kafka://b:99999", "engine", "b:99999", "host:port"),
        ("kafka://", "engine", "", "host:port"),
        ("kafka://b:1,,c:2", "engine", "", "host:port"),
        ("kafka://b:1/orders", "engine", None, "topic stands in the contract"),
        ("kafka://b:1?config=/no/such/file", "config", "/no/such/file", "readable"),
        ("kafka://b:1?security.protocol=ssl&ssl.ca.location=/no/such", "security.protocol", None, "ssl.ca.location"),
    ],
)
def test_what_is_wrong_is_named_with_its_remedy(url: str, field: str, value: str | None, word: str) -> None:
    with pytest.raises(ContractError) as refused:
        parse(url, {})
    assert (refused.value.field, refused.value.value) == (field, value)
    assert word in str(refused.value)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("name", sorted(properties.OWNED))
def test_what_a_promise_rests_on_belongs_to_settled(name: str) -> None:
    with pytest.raises(ContractError, match="belongs to settled") as refused:
        parse(f"kafka://b:1?{name}=1", {})
    assert refused.value.field == name
    assert refused.value.hint
    with pytest.raises(ContractError):
        parse("kafka://b:1", {"SETTLED_KAFKA_" + name.upper().replace(".", "_"): "1"})


@pytest.mark.parametrize(
    ("text", "line", "word"), [("client.id=a\nclient.id=b\n", 2, "twice"), ("\nclient.id\n", 2, "no value")]
)
def test_a_bad_line_of_the_file_is_named(tmp_path: Path, text: str, line: int, word: str) -> None:
    file = tmp_path / "client.properties"
    file.write_text(text)
    with pytest.raises(ContractError, match=word) as refused:
        parse(f"kafka://b:1?config={file}", {})
    assert (refused.value.source, refused.value.line) == (str(file), line)


def test_the_client_may_say_the_same_over_and_over(caplog: pytest.LogCaptureFixture) -> None:
    log = Log(())
    with caplog.at_level(logging.DEBUG, logger="settled.kafka"):
        for _ in range(3):
            log.log(logging.ERROR, "%s [%s] %s", "FAIL", "rdkafka#1", "[thrd:a:1/bootstrap]: refused (after 1ms)")
        log.log(logging.ERROR, "%s [%s] %s", "FAIL", "rdkafka#1", "[thrd:b:1/bootstrap]: refused (after 1ms)")
        log.log(logging.CRITICAL, "%s [%s] %s", "FATAL", "rdkafka#1", "[thrd:main]: no")
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.INFO, logging.DEBUG, logging.DEBUG, logging.INFO, logging.WARNING]
