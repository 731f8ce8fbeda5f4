"""Drills: real worker processes, killed in every window; then the effects are compared with what was published.

`crew` starts and ends processes, `worker` is what runs in them, `world` is one log and one store under test, `rounds`
kills through one window, `checker` judges the history that all of it left behind, `drill` puts it together.
"""
