"""The register of windows is what the source reaches, and what the documentation says."""

import re
from pathlib import Path

import settled
from settled import windows
from settled.drills.pages import windows_page

SOURCE = Path(settled.__file__).parent
REACHED = re.compile(r"windows\.reach\(\s*((?:[^()]|\([^()]*\))*)\)")
NAME = re.compile(r'"([a-z-]+)"')


def reached_in_source() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for call in REACHED.findall(path.read_text()):
            for name in NAME.findall(call):
                found.setdefault(name, set()).add(str(path.relative_to(SOURCE)))
    return found


def test_what_the_source_reaches_is_registered_and_what_is_registered_is_reached() -> None:
    assert set(reached_in_source()) == windows.NAMES


def test_every_window_is_named_once_and_says_all_of_it() -> None:
    assert len(windows.NAMES) == len(windows.WINDOWS)
    for window in windows.WINDOWS:
        said = (window.durable, window.pending, window.delay, window.repair)
        fates = (window.most, window.least, window.effectively)
        assert all(said), window.name
        assert all(fate.lost and fate.again and fate.ambiguous for fate in fates), window.name


def test_nothing_is_lost_after_a_publish_was_answered_except_at_most_once() -> None:
    for window in windows.WINDOWS:
        if window.journey != "publish":
            for fate in (window.least, window.effectively):
                assert fate.lost in ("none", "not reached"), window.name


def test_a_hook_sees_the_window_and_none_takes_it_away() -> None:
    seen: list[str] = []
    windows.install(seen.append)
    try:
        windows.reach("unit-begun")
    finally:
        windows.install(None)
    windows.reach("effect-made")
    assert seen == ["unit-begun"]


def test_the_page_of_windows_is_as_the_register_says() -> None:
    page = SOURCE.parent.parent / "docs" / "windows.md"
    assert page.read_text(encoding="utf-8") == windows_page(), "run: make docs"
