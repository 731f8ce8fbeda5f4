"""An image-rendering job is a queue: each job belongs to one worker at a time and is gone when it is done. Customers
take turns, an urgent job goes first, and an image that cannot be rendered ends in quarantine for a person.
"""

from pathlib import Path

import apsw

from settled import App, Reject

app = App(Path(__file__).with_name("contract.yaml"))
JOBS = [("cat.png", "alice", 4), ("dog.png", "alice", 4), ("broken.png", "bob", 4), ("logo.png", "bob", 9)]


@app.setup
def tables(tx):
    tx.execute("CREATE TABLE IF NOT EXISTS rendered (image TEXT PRIMARY KEY, pixels INTEGER)")


@app.handler
def render(tx, job):
    """The file is written under the job's own name: a second run after a crash writes the same one again."""
    image = job.key.decode()
    if image == "broken.png":
        raise Reject("this is not an image")
    Path(image).write_bytes(b"\x89PNG" + job.value)
    tx.execute("INSERT INTO rendered VALUES (?, ?)", (image, len(job.value)))


if __name__ == "__main__":
    with app:
        for image, customer, priority in JOBS:
            app.publish(image.encode() * 8, key=image, id=f"render {image}", tenant=customer, priority=priority)
        app.drain()  # `settled run app.py --workers 4` in production
        for image, pixels in apsw.Connection("settled-effects.db").execute("SELECT * FROM rendered ORDER BY 1"):
            print(image, pixels, Path(image).stat().st_size)
        for outcome, count in sorted(app.store.tally("renderers").items()):
            print(count, outcome.name.lower())
        left = app.engine.topics(["render-image"])[0].queue
        print("ready in the queue:", left.ready)
