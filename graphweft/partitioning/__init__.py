"""A graph's nodes in parts. Not called after its public name, ``gw.partition``, which a module would shadow."""
