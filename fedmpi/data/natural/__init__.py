"""Data whose clients are real (writers, roles, users), from the files of others into one prepared file.

clients.py: from samples by client to a Dataset: splits, held-out clients, numbers. sequences.py: texts as
sequences of tokens. leaf.py, tff.py, folder.py, table.py, plays.py: a converter for each kind of source.
Invariant: nothing is dropped or mended silently; a file that is not whole is refused in words.
"""

from fedmpi.data.natural import folder, leaf, plays, table, tff
from fedmpi.data.natural.clients import Converted, Options, assembled

CONVERTERS = {
    "leaf": leaf.read,
    "tff": tff.read,
    "folder": folder.read,
    "csv": table.read,
    "plays": plays.read,
}

__all__ = ["CONVERTERS", "Converted", "Options", "assembled"]
