"""A Celery task that makes one invoice per event. `acks_late` redelivers after a crash; the inbox makes that harmless.
Run here eagerly, without a broker."""

import billing
from celery import Celery

app = Celery("billing")
app.conf.task_always_eager = True
app.conf.task_eager_propagates = True
app.conf.task_acks_late = True


@app.task
def on_order(event_id: str, order_id: str, euros: int) -> None:
    billing.bill(event_id, order_id, euros)


on_order.delay("e1", "o-1", 30)
on_order.delay("e2", "o-2", 5)
on_order.delay("e1", "o-1", 30)  # delivered again
billing.show()
