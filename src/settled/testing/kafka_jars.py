"""The published jars of Apache Kafka, fetched once per user by Maven, and a formatted storage folder to copy.

They lie in SETTLED_KAFKA_CACHE, or `settled/kafka` below the user's cache folder. Any number of processes may ask at
once: one fetches, the others wait for it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from settled.errors import Unavailable, Unsupported

VARIABLE = "SETTLED_KAFKA_CACHE"
VERSION = "4.2.0"
LOGGING = "2.25.3"  # the version of log4j that this Kafka brings
FETCH_S, FORMAT_S = 600.0, 120.0
DEPENDENCIES = (
    ("org.apache.kafka", "kafka_2.13", VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", LOGGING),
)
POM = (
    '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
    "<groupId>settled.testing</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging>"
    "<dependencies>{}</dependencies></project>"
)


def java() -> str:
    """The command that runs Java. Raises Unsupported where it is absent."""
    home = os.environ.get("JAVA_HOME", "")
    found = shutil.which("java", path=f"{home}/bin" if home else None) or shutil.which("java")
    if not found:
        raise Unsupported(
            "there is no Java to run Kafka with", field="kafka", hint="install a Java runtime, 17 or newer"
        )
    return found


def jars() -> Path:
    """The folder with the jars; fetched where it is not there yet (about 45 MB).

    Raises Unsupported without Maven, and Unavailable where Maven could not fetch them."""
    cache = _cache()
    folder = cache / f"kafka-{VERSION}"
    if folder.is_dir():
        return folder
    maven = shutil.which("mvn")
    if not maven:
        raise Unsupported(
            "there is no Maven to fetch Kafka with", field="kafka", hint="install Maven (the command mvn)"
        )
    with locked(cache / "lock"), _made(folder) as fresh:
        if fresh is not None:
            (fresh / "pom.xml").write_text(POM.format("".join(map(_dependency, DEPENDENCIES))))
            goal = "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies"
            options = [f"-DoutputDirectory={fresh}", "-DincludeScope=runtime"]
            _run(
                [maven, "-q", "-B", "-f", str(fresh / "pom.xml"), goal, *options],
                FETCH_S,
                "Maven could not fetch Kafka",
            )
    return folder


def formatted(properties: str) -> Path:
    """A storage folder that Kafka's own tool has formatted for a broker with such properties: made once, to be copied.
    `properties` names its folder as `{storage}`."""
    libraries, cache = jars(), _cache()
    folder = cache / f"formatted-{VERSION}"
    if folder.is_dir():
        return folder
    with locked(cache / "lock"), _made(folder) as fresh:
        if fresh is not None:
            settings = fresh / "server.properties"
            settings.write_text(properties.replace("{storage}", str(fresh)))
            command = [java(), "-cp", f"{libraries}/*", "kafka.tools.StorageTool", "format", "-c", str(settings)]
            _run([*command, "-t", "c2V0dGxlZC10ZXN0aW5nMA"], FORMAT_S, "Kafka could not format its storage")
            settings.unlink()
    return folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file; waits for whoever holds it. The system lets go of it when its holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _made(folder: Path) -> Iterator[Path | None]:
    """A folder to fill, that takes the place of `folder` when the block ends well; None if another made it."""
    if folder.is_dir():
        yield None
        return
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as parent:
        fresh = Path(parent) / "new"
        fresh.mkdir()
        yield fresh
        fresh.rename(folder)


def _dependency(named: tuple[str, str, str]) -> str:
    tags = zip(("groupId", "artifactId", "version"), named, strict=True)
    return f"<dependency>{''.join(f'<{tag}>{text}</{tag}>' for tag, text in tags)}</dependency>"


def _cache() -> Path:
    given = os.environ.get(VARIABLE)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(given) if given else Path(home) / "settled" / "kafka"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run(command: list[str], seconds: float, failure: str) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds
        )
    except subprocess.TimeoutExpired as late:
        raise Unavailable(f"{failure} within {seconds:g} s", hint=f"run it by hand: {' '.join(command)}") from late
    if done.returncode:
        told = done.stdout.decode(errors="replace").strip()[-2000:]
        raise Unavailable(f"{failure}: {told}", hint=f"run it by hand: {' '.join(command)}")
