"""Benchmarks: settled against hand-written floors, side by side in one run. `python -m bench` (or `make bench`)."""
