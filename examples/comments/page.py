"""A page with comments, on FastAPI: a POST publishes the comment and redirects with its token, so that the page which
its author sees next shows it. Run it: `fastapi dev examples/comments/page.py` (or uvicorn page:api).
"""

import threading
from contextlib import asynccontextmanager
from html import escape

import apsw
import msgspec
from fastapi import FastAPI, Form, HTTPException
from fastapi.responses import HTMLResponse, RedirectResponse

from settled import App, ContractError
from settled.tokens import read_token

# The page is made from a projection that settles in groups: it lags behind by up to 50 ms.
comments = App(topic="comments", group="page", delivery={"group_size": {"linger": "50ms"}})


class Comment(msgspec.Struct):
    post: str
    text: str


@comments.setup
def tables(tx):
    tx.execute("CREATE TABLE IF NOT EXISTS comment (n INTEGER PRIMARY KEY, post TEXT, text TEXT)")
    tx.execute("CREATE INDEX IF NOT EXISTS comment_post ON comment (post)")


@comments.handler
def show(tx, comment: Comment):
    tx.execute("INSERT INTO comment (post, text) VALUES (?, ?)", (comment.post, comment.text))


def shown(post: str) -> list[str]:
    """The projection: what the handler has made."""
    database = apsw.Connection("settled-effects.db")
    try:
        return [text for (text,) in database.execute("SELECT text FROM comment WHERE post = ? ORDER BY n", (post,))]
    finally:
        database.close()


def shown_and_own(post: str, token: str) -> list[str]:
    """The fallback, when the projection is late: what it shows, and the author's own comment as it was written."""
    place = read_token(token)
    (record,) = comments.engine.read(place.topic, place.partition, place.offset, records=1)
    return [*shown(post), msgspec.json.decode(record.value, type=Comment).text]


@asynccontextmanager
async def working(_: FastAPI):
    worker = comments.worker()
    thread = threading.Thread(target=worker.run)
    thread.start()
    yield
    worker.stop()
    thread.join()
    comments.close()


api = FastAPI(lifespan=working)


@api.post("/posts/{post}/comments")
def write(post: str, text: str = Form(max_length=2000)) -> RedirectResponse:
    receipt = comments.publish({"post": post, "text": text}, key=post)
    return RedirectResponse(f"/posts/{post}?seen={receipt.token}", status_code=303)


@api.get("/posts/{post}")
def page(post: str, seen: str | None = None) -> HTMLResponse:
    try:
        found = comments.read_your_writes(
            seen, projection=lambda: shown(post), fallback=lambda: shown_and_own(post, seen), timeout=1.0
        )
    except ContractError as error:
        raise HTTPException(400, error.message) from error
    return HTMLResponse("".join(f"<p>{escape(text)}</p>" for text in found))
