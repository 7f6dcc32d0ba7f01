"""Plays, of which each role is a client: "ROLE:" on a line of its own, its speech below, then a blank line.

Roles are numbered as they appear, so that those of a play are neighbours: with `availability = "periodic"`
plays take turns. Plain text, or packed by xz or gzip.
"""

from __future__ import annotations

import gzip
import lzma
import re
import zlib
from pathlib import Path

from fedmpi.data.natural.clients import Options, Source
from fedmpi.data.natural.sequences import Texts, next_characters
from fedmpi.errors import UserError

_OPENERS = {".xz": lzma.open, ".gz": gzip.open}
_LONGEST_NAME = 60


def read(path: Path, options: Options) -> Source:
    """All roles of a file, with what they say."""
    what = f"plays {path}"
    roles: Texts = {}
    for number, speech in enumerate(_speeches(_text(path, what)), 1):
        role, _, said = speech.partition("\n")
        if not role.endswith(":") or not 1 < len(role) <= _LONGEST_NAME:
            raise UserError(
                f'{what}, speech {number}: begins with {role[:_LONGEST_NAME]!r}; expected "ROLE:" on a '
                "line of its own, then what the role says, then a blank line"
            )
        roles.setdefault(role[:-1].strip(), []).append(said.strip("\n"))
    if not roles:
        raise UserError(f"{what}: no speeches; expected ROLE: lines followed by speech")
    # What a role says is one text; one without words has none.
    train = {role: ["\n".join(filter(None, said))] for role, said in roles.items()}
    return next_characters(what, train, None, None, options)


def _speeches(text: str) -> list[str]:
    return [
        speech.strip("\n") for speech in re.split(r"\n\n+", text.replace("\r\n", "\n")) if speech.strip()
    ]


def _text(path: Path, what: str) -> str:
    try:
        with _OPENERS.get(path.suffix, open)(path, "rb") as file:
            return file.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{what}: not a text in UTF-8 ({error.reason} at byte {error.start:,})") from None
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{what}: cannot be unpacked ({error}); half a download? Fetch it again") from None
    except OSError as error:
        raise UserError(f"{what}: cannot be read ({error.strerror or error})") from None
