"""Verbs for people: what the command and the console show and do, without their looks."""
