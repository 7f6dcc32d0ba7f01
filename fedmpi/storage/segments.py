"""Long result files: rows that are complete are put away in segments, so that a flush costs what is new.

RUN.h5 is written again at each flush. When its rows outgrow a limit they go to a sealed file beside it,
RUN.h5.rows-1, RUN.h5.rows-2, ..., which is never written again; RUN.h5 names them with their numbers of
rows, and readers join them. When the run is over they are joined for good into RUN.h5, one ordinary HDF5
file. Invariant: a segment is on disk before RUN.h5 names it and is removed only after RUN.h5 does without
it, so that a kill at any moment leaves every row in exactly one file that counts.
"""

from __future__ import annotations

import contextlib
import glob
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import h5py

from fedmpi.errors import UserError
from fedmpi.storage.columns import FORMAT_VERSION, OPTIONAL_TABLES, SEGMENTED_VERSION, TABLES
from fedmpi.storage.files import read_sealed, replacing, write_whole
from fedmpi.storage.rows import count_rows, create_like, create_model, growing, move_rows

Counts = dict[str, int]  # rows of each table

_ATTRIBUTE = "segments"
_FORMAT = "fedmpi-run-rows"
_MOST_BYTES = 1 << 25  # of values in a file that is written at each flush
_IN_MEMORY = 1 << 28  # larger files are joined on disk
_STAYS = "clients"  # written once
_NAMES = (*TABLES, *OPTIONAL_TABLES, "params")


class SegmentError(UserError):
    """A segment that RUN.h5 names cannot be read; the run may have been joined meanwhile."""


def segments_of(file: h5py.File) -> list[Counts]:
    """The rows in each segment of a result file."""
    return json.loads(file.attrs.get(_ATTRIBUTE, "[]"))


def count_all_rows(file: h5py.File) -> Counts:
    """Rows of every table, wherever they are."""
    known = segments_of(file)
    return {name: rows + put_away(known, name) for name, rows in count_rows(file).items()}


def put_away(counts: Sequence[Counts], name: str) -> int:
    """The rows of a table in some segments."""
    return sum(own.get(name, 0) for own in counts)


def is_large(file: h5py.File) -> bool:
    """Whether so much has come together that it should be put away."""
    size = 0
    for name in _names_in(file):
        if name != _STAYS:
            size += sum(data.size * data.dtype.itemsize for data in growing(file[name]).values())
    return size > _MOST_BYTES


def put_rows_away(path: Path) -> None:
    """Move the rows of a result file to a new segment: whole chunks, which can be joined as they are."""
    with h5py.File.in_memory(_bytes_of(path)) as old:
        known, counts = segments_of(old), {}
        with replacing(_path(path, len(known) + 1)) as segment:
            segment.attrs.update(format=_FORMAT, run_id=old.attrs.get("run_id", ""))
            for name in _names_in(old):
                if name != _STAYS:
                    columns = growing(old[name])
                    rows, length = len(columns["round"]), columns["round"].chunks[0]
                    counts[name] = rows if name == "params" else rows // length * length
                    create_like(segment, old, name)
                    for column, data in growing(segment[name]).items():
                        move_rows(data, columns[column], 0, counts[name])
        with replacing(path) as new:
            _rebuild(new, old, path, [*known, counts])


def cut_back(path: Path, rows: Counts) -> None:
    """Drop the rows beyond those that a checkpoint names; segments with such rows go back to the file."""
    with h5py.File.in_memory(_bytes_of(path)) as old:
        known = segments_of(old)
        kept = 0
        while kept < len(known) and all(
            put_away(known[: kept + 1], name) <= rows.get(name, 0) for name in known[kept]
        ):
            kept += 1
        with replacing(path) as new:
            _rebuild(new, old, path, known[:kept], rows)
    remove_segments(path, kept)


def join(path: Path) -> None:
    """Make one ordinary file of a result file and its segments."""
    files = [path, *_existing(path)]
    if len(files) == 1:
        return
    on_disk = sum(file.stat().st_size for file in files) > _IN_MEMORY
    with h5py.File.in_memory(_bytes_of(path)) as old:
        if segments_of(old):
            with replacing(path, on_disk=on_disk) as new:
                _rebuild(new, old, path, [])
    remove_segments(path)


def copy_segments(source: Path, path: Path) -> None:
    """Those of another file, for a copy of it."""
    for number, file in enumerate(_existing(source), start=1):
        write_whole(_path(path, number), file.read_bytes())


def remove_segments(path: Path, kept: int = 0) -> None:
    """All beyond the first ones, which the result file does not name any more."""
    for file in _existing(path)[kept:]:
        with contextlib.suppress(OSError):
            file.unlink()


def opened_segments(file: h5py.File) -> Iterator[tuple[Counts, h5py.File]]:
    """The segments of a result file, each with its numbers of rows."""
    path = Path(file.filename)
    yield from _opened(path, segments_of(file), str(file.attrs.get("run_id", "")))


def _opened(
    path: Path, known: Sequence[Counts], run_id: str, first: int = 0
) -> Iterator[tuple[Counts, h5py.File]]:
    for number, counts in enumerate(known[first:], start=first + 1):
        place = _path(path, number)
        if not place.exists():
            raise SegmentError(
                f"run file {path}: a part of its rows is in {place}, which is missing; copy it too"
            )
        data = read_sealed(place)
        if data is None:
            raise SegmentError(f"{place}: not a part of a run file, or truncated")
        with h5py.File.in_memory(data) as segment:
            found = {name: len(segment[name]["round"]) for name in _names_in(segment)}
            if (
                segment.attrs.get("format") != _FORMAT
                or segment.attrs["run_id"] != run_id
                or found != counts
            ):
                raise SegmentError(f"{place}: belongs to another run than {path}")
            yield counts, segment


def _rebuild(
    new: h5py.File, old: h5py.File, path: Path, kept: Sequence[Counts], limits: Counts | None = None
) -> None:
    """Fill a file with all rows that are not in the segments that are kept, up to the limits."""
    # Attributes, empty tables, the model.
    known, names = segments_of(old), _names_in(old)
    new.attrs.update({name: value for name, value in old.attrs.items() if name != _ATTRIBUTE})
    new.attrs["format_version"] = SEGMENTED_VERSION if kept else FORMAT_VERSION
    if kept:
        new.attrs[_ATTRIBUTE] = json.dumps(list(kept))
    for name in names:
        create_like(new, old, name)
    if "model" in old:
        model = old["model"]
        create_model(new.create_group("model"), model.attrs["parameters"], model["global_params"][()])

    # The rows of other segments, then those of the file itself.
    begins = {name: put_away(kept, name) for name in names}
    starts = {name: put_away(known[: len(kept)], name) for name in names}
    sources = _opened(path, known, str(old.attrs.get("run_id", "")), len(kept))
    for source in _chain(sources, old):
        for name in names:
            if name not in source:
                continue
            columns = growing(source[name])
            start = starts[name]
            rows = len(next(iter(columns.values())))
            end = start + rows if limits is None else min(start + rows, limits.get(name, 0))
            for column, data in growing(new[name]).items():
                move_rows(data, columns[column], max(begins[name] - start, 0), max(end - start, 0))
            starts[name] = start + rows


def _chain(segments: Iterator[tuple[Counts, h5py.File]], last: h5py.File) -> Iterator[h5py.File]:
    for _, segment in segments:
        yield segment
    yield last


def _names_in(file: h5py.File) -> list[str]:
    return [name for name in _NAMES if name in file]


def _bytes_of(path: Path) -> bytes:
    try:
        data = read_sealed(path)
        return path.read_bytes() if data is None else data
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def _path(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.rows-{number}")


def _existing(path: Path) -> list[Path]:
    """All files that look like segments, in order."""
    found = path.parent.glob(f"{glob.escape(path.name)}.rows-*")
    numbered = [
        (int(file.name.rpartition("-")[2]), file)
        for file in found
        if file.name.rpartition("-")[2].isdigit()
    ]
    return [file for _, file in sorted(numbered)]
