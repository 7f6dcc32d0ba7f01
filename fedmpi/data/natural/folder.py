"""A folder with one folder a client: pictures by label, arrays, or texts.

Of a client either `inputs.npy` and `labels.npy`; or `LABEL/NAME.png` (or .jpg, .npy), a sample a file; or
`NAME.txt`, of which each next character is predicted. Clients below folders train, test and held-out, or
all in one folder, of which a share is taken for testing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedmpi.data.natural.clients import Client, Options, Source, parts_of
from fedmpi.data.natural.leaf import whole_labels
from fedmpi.data.natural.sequences import next_characters
from fedmpi.data.natural.tff import images_of
from fedmpi.errors import UserError

_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".npy")
Samples = tuple[np.ndarray, np.ndarray]


def read(path: Path, options: Options) -> Source:
    """All clients."""
    what = f"folder {path}"
    if not path.is_dir():
        raise UserError(f"{what}: no such folder; expected one with a folder for each client")
    folders = parts_of(path, what, lambda inside: sorted(f for f in inside.iterdir() if f.is_dir()))
    first = folders["train"][0]
    if any(first.glob("*.txt")):
        found = {part: {f.name: _texts(f) for f in some} for part, some in folders.items()}
        return next_characters(what, *(found.get(part) for part in ("train", "test", "held-out")), options)

    # Labels are names of folders, or numbers in arrays.
    names = () if (first / "inputs.npy").exists() else _label_names(what, folders)
    found = {part: {f.name: _samples(f, names) for f in some} for part, some in folders.items()}
    train, test = found["train"], found.get("test")
    strangers = {name: own for name, own in (test or {}).items() if name not in train}

    def of(name: str, own: Samples) -> Client:
        if test is None:
            return Client(name, *own)
        return Client(name, *own, test.get(name, tuple(part[:0] for part in own)))

    held_out = found.get("held-out", {}) | strangers
    return Source(
        what=what,
        clients=[of(name, own) for name, own in train.items()],
        held_out=[Client(name, *own) for name, own in held_out.items()],
        class_names=names,
        num_classes=len(names) or None,
    )


def _texts(folder: Path) -> list[str]:
    texts = []
    for file in sorted(folder.glob("*.txt")):
        try:
            texts.append(file.read_text(encoding="utf-8-sig"))
        except UnicodeDecodeError:
            raise UserError(f"{file}: not a text in UTF-8") from None
        except OSError as error:
            raise UserError(f"{file}: cannot be read ({error.strerror})") from None
    return texts


def _label_names(what: str, folders: dict[str, list[Path]]) -> tuple[str, ...]:
    """The labels of all clients, numbers in their order."""
    clients = [client for some in folders.values() for client in some]
    names = {label.name for client in clients for label in client.iterdir() if label.is_dir()}
    if not names:
        raise UserError(
            f"{what}: client {clients[0].name} has no inputs.npy and labels.npy, nor texts (.txt), nor "
            "a folder of pictures for each label"
        )
    return tuple(sorted(names, key=int) if all(name.isdecimal() for name in names) else sorted(names))


def _samples(folder: Path, names: tuple[str, ...]) -> Samples:
    """All samples of a client; without label names from its arrays."""
    if not names:
        inputs, labels = (_array(folder / name) for name in ("inputs.npy", "labels.npy"))
        if len(inputs) != len(labels):
            raise UserError(f"{folder}: {len(inputs)} inputs, but {len(labels)} labels")
        return _usable(folder, inputs), whole_labels(str(folder), labels)
    files = [
        (file, number)
        for number, name in enumerate(names)
        for file in sorted((folder / name).glob("*"))
        if file.suffix.lower() in _PICTURES
    ]
    inputs = [_array(file) if file.suffix == ".npy" else _picture(file) for file, _ in files]
    for (file, _), image in zip(files, inputs, strict=True):
        if image.shape != inputs[0].shape or image.dtype != inputs[0].dtype:
            raise UserError(
                f"{file}: shape {image.shape}, type {image.dtype}; {files[0][0]} has {inputs[0].shape}, "
                f"{inputs[0].dtype}; expected all alike"
            )
    if not inputs:
        raise UserError(f"{folder}: no pictures; remove the folder, or fetch what should be in it")
    return _usable(folder, np.stack(inputs)), np.array([number for _, number in files], np.int64)


def _array(path: Path) -> np.ndarray:
    try:
        return np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such file; expected inputs.npy and labels.npy in each client's folder"
        ) from None
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path}: cannot be read as an array ({error}); half a file?") from None


def _picture(path: Path) -> np.ndarray:
    """(height, width) of a grey picture, (height, width, 3) of a coloured one."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("L" if image.mode in ("1", "L", "LA") else "RGB"))
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as a picture ({error}); half a file?") from None


def _usable(folder: Path, inputs: np.ndarray) -> np.ndarray:
    """Bytes are images, numbers are features."""
    if inputs.dtype == np.uint8 and inputs.ndim in (3, 4):
        is_ready = inputs.ndim == 4 and inputs.shape[1] in (1, 3)
        return inputs if is_ready else images_of(str(folder), inputs)
    if inputs.dtype.kind not in "fiu" or inputs.ndim < 2:
        raise UserError(f"{folder}: inputs of type {inputs.dtype}, shape {inputs.shape}; expected numbers")
    if not np.isfinite(inputs).all():
        raise UserError(f"{folder}: an input is not finite")
    return inputs.astype(np.float32)
