"""Effect stores: implementations of the port `settled.store`. `sqlite` needs nothing more, `postgres` the extra
`settled[postgres]`. They never import each other; what both keep in the same form is in `evidence`.
"""
