"""Plain data from a pickle file, without running anything: what FedScale's client_behave_trace needs.

Invariant: a pickle can run code only by naming what to call, and here no name is ever looked up: dicts,
lists, numbers and strings need none, and whatever asks for one is refused.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, NoReturn

from fedmpi.errors import UserError


class _Plain(pickle.Unpickler):
    """Looks up nothing."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise _NotPlainError(f"{module}.{name}")


class _NotPlainError(Exception):
    """The file asks for a class or a function."""


def read_plain_pickle(data: bytes, what: str) -> Any:
    """The dicts, lists, numbers and strings in it; anything else is a UserError."""
    try:
        return _Plain(io.BytesIO(data)).load()
    except _NotPlainError as error:
        raise UserError(
            f"{what}: a pickle that asks for {str(error)[:80]}, not only numbers, lists and dicts; opening "
            "it could run code. Where you trust it, make JSON of it with Python:\n"
            "  import json, pickle\n"
            '  json.dump(pickle.load(open("FILE", "rb")), open("FILE.json", "w"), default=int)'
        ) from None
    except Exception as error:  # a damaged pickle can fail in any way
        raise UserError(f"{what}: not a whole pickle file ({type(error).__name__}: {error})") from None
