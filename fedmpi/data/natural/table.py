"""A CSV file with a client column: features are the other columns, all numbers; labels numbers or names."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from fedmpi.data.natural.clients import Client, Options, Source, check_names
from fedmpi.errors import UserError, did_you_mean


def read(path: Path, options: Options) -> Source:
    """All rows, by client in the order in which clients appear."""
    what = f"table {path}"
    rows: dict[str, list[tuple[list[float], str]]] = {}
    for client, values, label in _rows(path, what, options):
        rows.setdefault(client, []).append((values, label))
    if not rows:
        raise UserError(f"{what}: no rows below the header")
    ids = [int(name) if name.isdecimal() else name for name in rows]
    check_names(what, ids, "give all of them a letter in front, if they are right")
    names, make = _label_kind([label for own in rows.values() for _, label in own])

    def of(client: str) -> Client:
        inputs = np.array([values for values, _ in rows[client]], np.float32)
        return Client(client, inputs, np.array([make(label) for _, label in rows[client]]))

    return Source(
        what=what,
        clients=[of(client) for client in rows],
        class_names=names,
        num_classes=len(names) or None,
    )


def _label_kind(labels: list[str]) -> tuple[tuple[str, ...], Callable[[str], int | float]]:
    """Names of labels, and what makes numbers of them; other than whole ones are to be predicted."""
    for make in (int, float):
        try:
            values = [make(label) for label in labels]
        except ValueError:
            continue
        if np.isfinite(values).all():
            return (), make
    names = tuple(sorted(set(labels)))
    return names, {label: n for n, label in enumerate(names)}.__getitem__


def _rows(path: Path, what: str, options: Options) -> Iterator[tuple[str, list[float], str]]:
    """(client, features, label) of each row."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            client, label = (
                _place(what, header, name, option)
                for name, option in (
                    (options.client_column, "--client-column"),
                    (options.label_column, "--label-column"),
                )
            )
            features = [n for n in range(len(header)) if n not in (client, label)]
            if not features:
                raise UserError(f"{what}: no columns besides {header[client]} and {header[label]}")
            for cells in reader:
                if cells:
                    place = f"{what}, line {reader.line_num}"
                    if len(cells) != len(header):
                        raise UserError(
                            f"{place}: {len(cells)} values for {len(header)} columns; half a file?"
                        )
                    if not cells[client].strip() or not cells[label].strip():
                        raise UserError(f"{place}: without {header[client]} or {header[label]}")
                    values = [_number(cells[n], header[n], place) for n in features]
                    yield cells[client].strip(), values, cells[label].strip()
    except UnicodeDecodeError:
        raise UserError(f"{what}: not a text file (UTF-8)") from None
    except csv.Error as error:
        raise UserError(f"{what}: not valid CSV ({error})") from None
    except OSError as error:
        raise UserError(f"{what}: cannot be read ({error.strerror})") from None


def _place(what: str, header: list[str], name: str, option: str) -> int:
    if name not in header:
        raise UserError(
            f"{what}, line 1: no column {name!r}; {did_you_mean(name, header)}; name it with {option}"
        )
    return header.index(name)


def _number(text: str, name: str, place: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise UserError(f"{place}: {name} {text[:40]!r}; expected a number")
    return value
