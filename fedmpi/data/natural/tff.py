"""HDF5 files of TensorFlow Federated: examples/<client>/ with pixels (or image) and label, or snippets.

A folder with one file each of names that end in train.h5, test.h5 and, where there is one, held_out.h5; or
a single file, of which a share is taken for testing.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from fedmpi.data.natural.clients import Client, Options, Source
from fedmpi.data.natural.leaf import whole_labels
from fedmpi.data.natural.sequences import next_characters
from fedmpi.errors import UserError
from fedmpi.storage.files import check_harmless

_IMAGES = ("pixels", "image")
_LABELS = ("label", "labels")
Samples = tuple[np.ndarray, np.ndarray]


def read(path: Path, options: Options) -> Source:
    """All clients of all files."""
    what = f"TFF data {path}"
    files = _files(path, what)
    found = {part: _clients(file) for part, file in files.items()}
    kinds = {isinstance(data, list) for clients in found.values() for data in clients.values()}
    if kinds == {True, False}:
        raise UserError(f"{what}: some clients have snippets of text, others images; expected one kind")
    train, test, held_out = (found.get(part) for part in ("train", "test", "held-out"))
    held_out = (held_out or {}) | {n: data for n, data in (test or {}).items() if n not in train}
    if kinds == {True}:
        return next_characters(what, train, test, held_out, options)

    def of(name: str, samples: Samples) -> Client:
        if test is None:
            return Client(name, *samples)
        return Client(name, *samples, test.get(name, tuple(part[:0] for part in samples)))

    return Source(
        what=what,
        clients=[of(name, samples) for name, samples in train.items()],
        held_out=[Client(name, *samples) for name, samples in held_out.items()],
    )


def _files(path: Path, what: str) -> dict[str, Path]:
    if path.is_file():
        return {"train": path}
    if not path.is_dir():
        raise UserError(f"{what}: no such file or folder")
    endings = {"train": ("train.h5",), "test": ("test.h5",), "held-out": ("held_out.h5", "heldout.h5")}
    found = {}
    for part, names in endings.items():
        files = sorted(file for file in path.iterdir() if file.name.endswith(names))
        if len(files) > 1:
            listed = ", ".join(file.name for file in files)
            raise UserError(
                f"{what}: several files for {part} ({listed}); name one file, or put them apart"
            )
        if files:
            found[part] = files[0]
    if "train" not in found:
        raise UserError(f"{what}: no file whose name ends in train.h5; archives must be unpacked first")
    return found


def _clients(path: Path) -> dict[str, Samples | list[str]]:
    """Images and labels of each client, or its texts."""
    what = f"TFF file {path}"
    try:
        check_harmless(path)
        with h5py.File(path, "r", locking=False) as file:
            if not isinstance(file.get("examples"), h5py.Group):
                raise UserError(
                    f"{what}: has {', '.join(list(file)[:5]) or 'nothing'}; expected a group examples with "
                    "one group a client, as TensorFlow Federated writes it"
                )
            return {
                name: _one(f'{what}, client "{name}"', group) for name, group in file["examples"].items()
            }
    except UserError:
        raise
    except Exception as error:  # a damaged file can fail in any way inside the HDF5 library
        reason = "it is not a whole HDF5 file" if "truncated" in str(error) else str(error)
        raise UserError(
            f"{what}: cannot be read ({reason}); half a download, or an archive? Fetch or unpack it again"
        ) from None


def _one(place: str, group: h5py.Group) -> Samples | list[str]:
    if "snippets" in group:
        texts = group["snippets"].asstr("utf-8", "replace")[()]
        return [str(text) for text in texts]
    images, labels = (next((n for n in names if n in group), None) for names in (_IMAGES, _LABELS))
    if images is None or labels is None:
        raise UserError(
            f"{place}: has {', '.join(group) or 'nothing'}; expected pixels and label, or snippets"
        )
    inputs, values = group[images][()], whole_labels(place, group[labels][()])
    if len(inputs) != len(values):
        raise UserError(f"{place}: {len(inputs)} images, but {len(values)} labels")
    return images_of(place, inputs), values


def images_of(place: str, images: np.ndarray) -> np.ndarray:
    """(n, channels, height, width) as bytes, from (n, height, width) or (n, height, width, channels)."""
    if images.dtype.kind == "f":
        if images.size and not 0 <= images.min() <= images.max() <= 1:
            raise UserError(f"{place}: pixels from {images.min():g} to {images.max():g}; expected 0 to 1")
        images = np.rint(255 * images).astype(np.uint8)
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise UserError(
            f"{place}: images of type {images.dtype}, shape {images.shape}; expected (n, height, width) or "
            "(n, height, width, channels)"
        )
    return images[:, None] if images.ndim == 3 else np.moveaxis(images, 3, 1)
