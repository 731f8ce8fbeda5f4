"""One worker process of the demo: `python -m settled.drills.demo.worker FOLDER NAME`. Runs until SIGTERM."""

from __future__ import annotations

import sys
from pathlib import Path

from settled.drills.demo import moment
from settled.drills.demo.handed import SUFFIX, WatchedApp
from settled.drills.demo.orders import app_in


def main(folder: Path, name: str) -> None:
    moment.stand_still_when_asked(folder, name)
    with app_in(folder, WatchedApp) as app:
        assert isinstance(app, WatchedApp)
        app.ledger = folder / f"{name}{SUFFIX}"
        app.run(member=name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
