"""The fork server of a drill, with one mutant in it: `python mutant_worker.py NAME`. All is forked from it."""

import sys

from mutants import MUTANTS

from settled.drills.worker import serve

if __name__ == "__main__":
    MUTANTS[sys.argv[1]]()
    serve()
