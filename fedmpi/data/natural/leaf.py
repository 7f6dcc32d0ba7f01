"""LEAF's JSON files (Caldas et al. 2018): FEMNIST images, Shakespeare, Sent140, and features as numbers.

A file has `users`, `num_samples`, and `user_data` with lists x and y of each user. Files below folders
train and test, as LEAF writes them, or all in one folder. Users that are in test alone are held out: LEAF
splits by user on request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedmpi.data.natural.clients import Client, Options, Source, check_names, parts_of
from fedmpi.data.natural.sequences import (
    PADDED,
    characters,
    frequent_words,
    token_type,
    word_counts,
    word_sequences,
)
from fedmpi.errors import UserError

_IMAGE = 28 * 28
Users = dict[str, dict[str, Sequence]]  # name -> {"x": samples, "y": labels}


def read(path: Path, options: Options) -> Source:
    """All users of all files."""
    what = f"LEAF data {path}"
    if not path.exists():
        raise UserError(f"{what}: no such file or folder")
    files = parts_of(path, what, lambda folder: sorted(folder.glob("*.json"), key=_by_number))
    parts = {part: _users(some, what) for part, some in files.items()}
    train, test, held_out = (parts.get(part, {}) for part in ("train", "test", "held-out"))
    held_out |= {name: data for name, data in test.items() if name not in train}
    first = next((data["x"][0] for data in train.values() if len(data["x"])), None)
    if first is None:
        raise UserError(f"{what}: no user has a sample to train on")
    for kind, make in ((np.ndarray, _numbers), (str, _characters), (list, _tweets)):
        if isinstance(first, kind):
            return make(what, train, test if "test" in parts else None, held_out, options)
    raise UserError(
        f"{what}: a sample is {str(first)[:40]!r}; expected a list of numbers, a text, or a tweet"
    )


def _by_number(path: Path) -> list:
    """data_10 comes after data_9."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path.name)]


def _users(files: Sequence[Path], what: str) -> Users:
    users: Users = {}
    whose: dict[str, Path] = {}
    for file in files:
        for name, data in _one_file(file).items():
            if name in users:
                raise UserError(f'{what}: user "{name}" is in {whose[name].name} and in {file.name}')
            users[name], whose[name] = data, file
    return users


def _one_file(path: Path) -> Users:
    what = f"LEAF file {path}"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise UserError(f"{what}: not a text file (UTF-8); if it is an archive, unpack it first") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{what}: not valid JSON ({error}); half a download? Fetch it again") from None
    except OSError as error:
        raise UserError(f"{what}: cannot be read ({error.strerror})") from None
    if not isinstance(content, dict) or not {"users", "user_data"} <= content.keys():
        raise UserError(f'{what}: expected "users", "num_samples" and "user_data", as LEAF writes them')
    users, user_data = content["users"], content["user_data"]
    counts = content.get("num_samples", [None] * len(users))
    if not isinstance(users, list) or not isinstance(user_data, dict) or not isinstance(counts, list):
        raise UserError(f'{what}: expected lists "users" and "num_samples", and a mapping "user_data"')
    check_names(what, users, "write all of them in quotation marks")
    if len(counts) != len(users):
        raise UserError(f"{what}: {len(users)} users, but num_samples has {len(counts)} entries")
    return {
        str(name): _one_user(f'{what}, user "{name}"', user_data.get(str(name)), count)
        for name, count in zip(users, counts, strict=True)
    }


def _one_user(place: str, data: Any, count: int | None) -> dict[str, Sequence]:
    if not isinstance(data, dict) or not all(isinstance(data.get(key), list) for key in "xy"):
        raise UserError(
            f"{place}: has no lists x and y in user_data; half a file? Convert it again with LEAF"
        )
    if len(data["x"]) != len(data["y"]):
        raise UserError(f"{place}: {len(data['x'])} samples x, but {len(data['y'])} labels y")
    if count is not None and count != len(data["y"]):
        raise UserError(f"{place}: {len(data['y'])} samples, but num_samples says {count}")
    if (
        data["x"]
        and isinstance(data["x"][0], list)
        and data["x"][0]
        and not isinstance(data["x"][0][0], str)
    ):
        return {"x": _as_array(place, data["x"]), "y": data["y"]}
    return data


def _clients(train: Users, test: Users | None, held_out: Users, convert: Any) -> dict[str, list[Client]]:
    """Clients of both kinds, whose samples `convert` makes arrays of, given (user, x, y)."""

    def of(name: str, data: dict[str, Sequence]) -> Client:
        if test is None:
            return Client(name, *convert(name, data["x"], data["y"]))
        tested = test.get(name, {"x": [], "y": []})
        return Client(name, *convert(name, data["x"], data["y"]), convert(name, tested["x"], tested["y"]))

    return {
        "clients": [of(name, data) for name, data in train.items()],
        "held_out": [Client(name, *convert(name, d["x"], d["y"])) for name, d in held_out.items()],
    }


def _numbers(what: str, train: Users, test: Users | None, held_out: Users, options: Options) -> Source:
    """FEMNIST: images; other numbers are features."""
    like = next(data["x"] for data in train.values() if len(data["x"]))

    def convert(name: str, x: Sequence, y: list) -> tuple[np.ndarray, np.ndarray]:
        place = f'{what}, user "{name}"'
        if len(x) and not isinstance(x, np.ndarray):
            raise UserError(f"{place}: a sample is {str(x[0])[:40]!r}; those of other users are numbers")
        return (x if len(x) else like[:0]), whole_labels(place, y)

    return Source(what=what, **_clients(train, test, held_out, convert))


def _as_array(place: str, samples: list) -> np.ndarray:
    """Numbers, as soon as they are read: lists of them take thirty times the memory.

    784 of them, from 0 to 1, are an image and become bytes.
    """
    width = len(samples[0])
    for sample in samples:
        if not isinstance(sample, list) or len(sample) != width:
            raise UserError(f"{place}: a sample is {str(sample)[:40]}; expected {width} numbers")
    try:
        values = np.array(samples, np.float32).reshape(len(samples), width)
    except (TypeError, ValueError) as error:
        raise UserError(f"{place}: samples are not numbers ({error})") from None
    if not np.isfinite(values).all():
        raise UserError(f"{place}: a sample has a number that is not finite")
    if width != _IMAGE:
        return values
    if not 0 <= values.min() <= values.max() <= 1:
        raise UserError(f"{place}: pixels from {values.min():g} to {values.max():g}; expected 0 to 1")
    return np.rint(255 * values).astype(np.uint8).reshape(-1, 1, 28, 28)


def whole_labels(place: str, labels: Sequence) -> np.ndarray:
    """Labels as integers; anything else is refused."""
    values = np.asarray(labels)
    if len(labels) == 0:
        return np.zeros(0, np.int64)
    if values.ndim != 1 or values.dtype.kind not in "iuf" or (values != np.floor(values)).any():
        raise UserError(f"{place}: labels such as {str(labels[0])[:40]!r}; expected integers from 0")
    return values.astype(np.int64)


def _characters(what: str, train: Users, test: Users | None, held_out: Users, options: Options) -> Source:
    """Shakespeare: x is a text, y the character that follows it; only that one counts, as in LEAF."""
    sets = [users for users in (train, test, held_out) if users]
    everything = (text for users in sets for data in users.values() for text in (*data["x"], *data["y"]))
    length = len(next(data["x"][0] for data in train.values() if data["x"]))
    try:
        vocabulary = characters(everything)
    except TypeError:
        raise UserError(
            f"{what}: some samples are texts and others are not; expected texts x and y"
        ) from None
    number = {character: n for n, character in enumerate(vocabulary)}

    def convert(name: str, x: list, y: list) -> tuple[np.ndarray, np.ndarray]:
        for text, following in zip(x, y, strict=True):
            if len(text) != length or len(following) != 1:
                raise UserError(
                    f'{what}, user "{name}": a text of {len(text)} characters and {following[:20]!r} after '
                    f"it; expected {length} characters and one"
                )
        tokens = [[number[c] for c in text] for text in x]
        inputs = np.array(tokens, token_type(len(number))).reshape(len(x), length)
        labels = np.full((len(x), length), PADDED, np.int64)
        labels[:, -1] = [number[c] for c in y]
        return inputs, labels

    return Source(
        what=what, **_clients(train, test, held_out, convert),
        vocabulary=vocabulary, num_classes=len(vocabulary), is_ordered=True,
    )  # fmt: skip


def _tweets(what: str, train: Users, test: Users | None, held_out: Users, options: Options) -> Source:
    """Sent140: x is (id, date, query, user, text), y 0 or 1. Words that are frequent in training."""

    def text_of(name: str, tweet: Any) -> str:
        if not isinstance(tweet, list) or not tweet or not isinstance(tweet[-1], str):
            raise UserError(
                f'{what}, user "{name}": a sample is {str(tweet)[:40]}; expected a tweet, text at its end'
            )
        return tweet[-1]

    known = (text_of(name, tweet) for name, data in train.items() for tweet in data["x"])
    vocabulary = frequent_words(known, options.vocabulary)
    number = {word: n for n, word in enumerate(vocabulary)}

    def convert(name: str, x: list, y: list) -> tuple[np.ndarray, np.ndarray]:
        texts = [text_of(name, tweet) for tweet in x]
        labels = whole_labels(f'{what}, user "{name}"', y)
        if options.words == "bag":
            return word_counts(texts, number), labels
        return word_sequences(texts, number, options.length), labels

    source = _clients(train, test, held_out, convert)
    return Source(
        what=what, **source, vocabulary=vocabulary, class_names=("negative", "positive"), num_classes=2
    )
