"""The journey of a record: polled, admitted, put in its lane, run in a group, settled, below the frontier.

worker.py owns the state; attempt.py runs one group; lanes, frontier, flow and retry decide without I/O.
"""
