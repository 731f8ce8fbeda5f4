"""Log engines, one folder or file each. They implement `settled.engine` and never import one another."""
