"""The pytest plug-in: a drill as a test.

    def test_my_app_survives(settled_drill):
        settled_drill("app.py", windows=["handler", "effect-committed"], kills=20)

Registered as `settled`; it costs nothing until the fixture is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from settled.drills.report import Report


class DrillFixture(Protocol):
    def __call__(
        self,
        app: str | Path = "",
        *,
        windows: Iterable[str] = (),
        named: Iterable[str] = (),
        kills: int = 5,
        records: str | Path | None = None,
        check: str = "",
        engine: str = "",
        store: str = "",
        seed: int | None = None,
        **more: Any,
    ) -> Report:
        """Drill the application (see `settled.drills.drill.Drill`) and fail the test if the verdict is not `pass`, or a
        window was never reached. The report comes back for further looks."""
        ...


@pytest.fixture
def settled_drill(tmp_path: Path) -> DrillFixture:
    """A function that drills an application in the test's own folder."""

    def drill(
        app: str | Path = "",
        *,
        windows: Iterable[str] = (),
        named: Iterable[str] = (),
        records: str | Path | None = None,
        **more: Any,
    ) -> Report:
        from settled.drills.drill import Drill, run
        from settled.drills.report import text

        report = run(
            Drill(
                app=str(app),
                windows=tuple(windows),
                named=tuple(named),
                records=None if records is None else Path(records),
                folder=tmp_path / "drill",
                **more,
            )
        )
        told = "\n".join(text(report))
        if report.verdict != "pass":
            pytest.fail(f"the drill failed; --seed {report.seed} repeats its plan\n{told}", pytrace=False)
        unreached = [row.window for row in report.windows if not row.kills]
        if unreached:
            pytest.fail(f"nothing died in {', '.join(unreached)}, so nothing was tried\n{told}", pytrace=False)
        return report

    return drill
