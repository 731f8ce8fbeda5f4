"""Public pytest suites: what every engine and every store must show. Subclass one, supply its fixtures, run pytest."""
