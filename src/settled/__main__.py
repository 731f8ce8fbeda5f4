"""`python -m settled` is the command `settled`."""

from settled.cli import main

main()
