"""How often does an author not see the comment that was just posted? Measured with the token and without it."""

import sys
import time
import uuid

from fastapi.testclient import TestClient
from page import api

POSTS = int(sys.argv[1]) if len(sys.argv) > 1 else 50


def visit(client: TestClient, *, token: bool) -> tuple[bool, float]:
    """Post a comment, then look at the page: whether it was missing, and how long the page took."""
    text = f"comment {uuid.uuid4()}"
    answer = client.post("/posts/1/comments", data={"text": text}, follow_redirects=False)
    where = answer.headers["location"]
    began = time.perf_counter()
    shown = client.get(where if token else where.partition("?")[0])
    return text not in shown.text, time.perf_counter() - began


with TestClient(api) as client:
    for token in (False, True):
        visits = [visit(client, token=token) for _ in range(POSTS)]
        stale, times = [missing for missing, _ in visits], sorted(took for _, took in visits)
        print(
            f"{'with' if token else 'without'} the token: {sum(stale)} of {POSTS} pages stale,"
            f" half of them within {times[POSTS // 2] * 1000:.0f} ms, the slowest in {times[-1] * 1000:.0f} ms"
        )
    refused = client.get("/posts/1?seen=garbled")
    print(f"a garbled token: {refused.status_code} {refused.json()['detail']}")
