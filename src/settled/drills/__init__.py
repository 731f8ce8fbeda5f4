"""Drills: real processes, killed on purpose, and a verdict from what is in the database."""
