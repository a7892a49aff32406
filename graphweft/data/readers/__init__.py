"""One module per layout of files, and ``registry``, which recognises a layout and is the only way in.

Comes in: a path. Goes out: a Dataset, or one DataError of one line. Nothing here unpickles, follows a size that a
file claims without evidence, or lets another kind of exception out.
"""
