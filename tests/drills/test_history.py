"""What a drill writes down survives what the drill does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from settled.drills.history import read

_WRITER = """
import resource, sys, threading
from pathlib import Path
from settled.drills.history import Event, Writer
writer = Writer(Path(sys.argv[1]), "work")
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
def room():
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
threading.Timer(0.3, room).start()
for number in range(5):
    writer.write(Event(what="deliver", id=f"e-{number}"))
writer.close()
"""


def test_a_line_that_a_full_disk_took_in_part_is_finished_when_there_is_room(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _WRITER, str(tmp_path)], check=True, timeout=60)
    assert [event.id for event in read(tmp_path)] == [f"e-{number}" for number in range(5)]
