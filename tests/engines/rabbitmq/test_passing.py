"""Readers without a group on RabbitMQ, and what passes them: killed, stopped, cut off, bounded."""

from __future__ import annotations

from pathlib import Path

import pytest
from passing import FORMS, campaign

from settled.engine import Form
from settled.testing import rabbitmq

pytestmark = [pytest.mark.xdist_group("rabbitmq"), pytest.mark.timeout(300)]

KILLS = 3  # in this file; `PYTHONPATH=tests python tests/engines/rabbitmq/passing.py 50` is the whole of it


@pytest.mark.parametrize("form", FORMS)
def test_given_and_missed_are_what_was_published_whoever_is_killed(form: Form, tmp_path: Path) -> None:
    found = campaign(rabbitmq.url(), form, tmp_path, KILLS, 7)
    assert found["kills"] >= KILLS
    assert found["given"] > 0
