"""The contract: what an interaction promises, in one file. Read in this order: `model` (the fields), `load` (a file
into a model), `check` (what contradicts itself), `specs` (the model into what the ports take).
"""
