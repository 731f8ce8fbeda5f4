"""The embedded engine: a log in one SQLite file, shared by several processes of one machine.

Reading order: `engine` (the port), `producer` and `append` (in), `consumer`, `heartbeat`, `membership` and `reading`
(out), `history` (opening, and what is refused), `retention`; `encoding` and `schema` say how it is stored.
"""

from settled.engines.sqlite.engine import SqliteEngine
from settled.engines.sqlite.history import Loss, LossAccepted, accept_loss

__all__ = ["Loss", "LossAccepted", "SqliteEngine", "accept_loss"]
