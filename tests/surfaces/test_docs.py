"""The pages speak of what is there: links lead somewhere, functions and windows that they name exist."""

import ast
import re
from pathlib import Path

import pytest

from settled.windows import NAMES

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
PROSE = [page for page in PAGES if page.name not in ("contract.md", "windows.md")]  # those have tests of their own


def _classes() -> dict[str, set[str]]:
    """What can be asked of each class in the package, by the class's name."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                names = found.setdefault(node.name, set())
                for part in ast.walk(node):
                    if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                        names.add(part.name)
                    elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                        names.add(part.target.id)
    return found


def _functions() -> set[str]:
    return {
        node.name
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    }


CLASSES = _classes()
FUNCTIONS = _functions()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_is_named_in_the_code_is_there(page: Path):
    text = page.read_text()
    for name, part in re.findall(r"`([A-Z]\w+)\.(\w+)`", text):
        assert part in CLASSES[name], f"{name}.{part}"
    for name in re.findall(r"`([A-Z][a-z]+[A-Za-z]*)`", text):
        assert name in CLASSES or name in FUNCTIONS or name in ("SELECT", "FulfillmentRequested"), name
    for name in re.findall(
        r"`([a-z]+_[a-z_]+)`", page.read_text() if page.name in ("journey.md", "glossary.md") else ""
    ):
        assert name in FUNCTIONS, name
    for path in re.findall(r"`((?:src|tests|examples|docs)/[\w/.-]+)`", text):
        assert (ROOT / path).exists(), path


def test_the_windows_on_the_way_are_windows():
    text = (ROOT / "docs/journey.md").read_text()
    named = {
        name
        for group in re.findall(r"[Ww]indows?\s+((?:`[a-z-]+`(?:, then |, )?)+)", text)
        for name in re.findall(r"`([a-z-]+)`", group)
    }
    assert len(named) >= 12
    assert named <= NAMES


def test_no_page_speaks_of_line_numbers():
    for page in PAGES:
        assert not re.search(r"\.py:\d+|\bline \d{2,}", page.read_text()), page
