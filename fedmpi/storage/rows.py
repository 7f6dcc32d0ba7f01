"""The tables of a result file as HDF5: created empty, appended to, moved from file to file.

Invariant: every dataset has units, a description and dimension scales, so that other tools know what it is.
"""

from __future__ import annotations

import h5py
import numpy as np

from fedmpi.storage.columns import OPTIONAL_TABLES, TABLES, Column, stored_metrics, tables

_NOT_A_VARIABLE = "This is a netCDF dimension but not a netCDF variable. %10d"  # text fixed by netCDF-4
_CHUNK_ROWS = 8192


def count_rows(file: h5py.File) -> dict[str, int]:
    """Rows of every table."""
    counts = {name: len(file[name][columns[0].name]) for name, columns in TABLES.items()}
    there = [name for name in [*OPTIONAL_TABLES, "params"] if name in file]
    return counts | {name: len(file[name]["round"]) for name in there}


def create_model(group: h5py.Group, parameters: str, global_params: np.ndarray) -> None:
    """The latest model. `parameters` describes names and shapes as JSON."""
    _create_bare_dimension(group, "parameter", len(global_params))
    data = group.create_dataset("global_params", data=global_params)
    _describe(data, "1", "x_t after the last round written")
    _attach(data, group, "parameter")
    group.attrs["parameters"] = parameters


def _attach(data: h5py.Dataset, group: h5py.Group, *scales: str) -> None:
    """Name the dimensions of a dataset by scales of its group."""
    for axis, scale in enumerate(scales):
        data.dims[axis].attach_scale(group[scale])
        data.dims[axis].label = scale


def create_table(group: h5py.Group, columns: tuple[Column, ...]) -> None:
    """Empty, growing, compressed columns along a dimension scale."""
    # The columns.
    for column in columns:
        data = group.create_dataset(
            column.name, (0,), column.dtype, maxshape=(None,), chunks=(_CHUNK_ROWS,),
            compression="gzip", compression_opts=4, shuffle=True,
        )  # fmt: skip
        _describe(data, column.units, column.description)

    # The first one is the dimension of the others.
    group[columns[0].name].make_scale(columns[0].name)
    for column in columns[1:]:
        _attach(group[column.name], group, columns[0].name)


def _create_bare_dimension(group: h5py.Group, name: str, size: int) -> None:
    """A dimension without values, as netCDF-4 has them; takes no space."""
    scale = group.create_dataset(name, (size,), "i1", chunks=(min(size, 1 << 20),))
    scale.make_scale(_NOT_A_VARIABLE % size)
    _describe(scale, "1", "position in the flat vector of parameters; holds no values")


def _describe(data: h5py.Dataset, units: str, description: str) -> None:
    data.attrs["units"] = units
    data.attrs["description"] = description
    data.attrs["long_name"] = description  # the name that plotting tools look for


def append(group: h5py.Group, columns: tuple[Column, ...], rows: list[tuple]) -> None:
    """Append what `RunWriter.add` collected."""
    if not rows:
        return
    lengths = [
        max((len(value) for value in row if isinstance(value, np.ndarray)), default=1) for row in rows
    ]
    for column, values in zip(columns, zip(*rows, strict=True), strict=True):
        # Arrays one after another, numbers repeated to fit.
        if isinstance(values[0], np.ndarray):
            block = np.concatenate(values)
        else:
            block = np.repeat(np.array(values), lengths)
        extend(group[column.name], block)


def extend(data: h5py.Dataset, block: np.ndarray) -> None:
    """More rows."""
    data.resize(len(data) + len(block), axis=0)
    data[len(data) - len(block) :] = block


def create_params(file: h5py.File, num_params: int) -> None:
    """/params: x_t of some rounds."""
    group = file.create_group("params")
    create_table(group, (Column("round", "i8", "rounds", "completed rounds: t is x_t"),))
    _create_bare_dimension(group, "parameter", num_params)
    data = group.create_dataset(
        "global_params", (0, num_params), "f8", maxshape=(None, num_params),
        chunks=(max(1, min(64, (1 << 20) // (8 * num_params))), num_params),
    )  # fmt: skip
    _describe(data, "1", "x_t, float64")
    _attach(data, group, "round", "parameter")


def create_like(file: h5py.File, source: h5py.File, name: str) -> None:
    """An empty table as `source` has it."""
    if name == "params":
        create_params(file, source["params/global_params"].shape[1])
    else:
        columns = tables(stored_metrics(source.attrs))[name]  # files of an older version have fewer
        create_table(file.create_group(name), tuple(c for c in columns if c.name in source[name]))


def growing(group: h5py.Group) -> dict[str, h5py.Dataset]:
    """The columns of a table, without the bare dimension of /params."""
    return {name: data for name, data in group.items() if data.maxshape[0] is None}


def move_rows(target: h5py.Dataset, source: h5py.Dataset, begin: int, end: int) -> None:
    """Append some rows of another file. Whole chunks are copied as they are, still compressed."""
    length = source.chunks[0]
    is_aligned = begin % length == 0 and len(target) % length == 0 and target.chunks == source.chunks
    for first in range(begin, end, length):
        last = min(first + length, end)
        if not is_aligned or last - first < length:
            extend(target, source[first:last])
            continue
        place = (0,) * (source.ndim - 1)
        mask, packed = source.id.read_direct_chunk((first, *place))
        target.resize(len(target) + length, axis=0)
        target.id.write_direct_chunk((len(target) - length, *place), packed, mask)
