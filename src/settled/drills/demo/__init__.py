"""The demo: Mercury's orders become reservations, each once, while a worker is killed in the middle.

Read in this order: stream (what is published, and what must come of it), orders (contract and handler), worker (one
process), handed (what it was handed, written down), moment (when it is killed), crew (the processes), run (the course
of events), verdict (what the database says).
"""
