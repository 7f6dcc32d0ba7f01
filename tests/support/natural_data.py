"""Small sources of natural data in the layouts of others: LEAF, TFF, folders, tables, plays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np

PLAYS = """ADA:
To be, or not.

BEN:
Aye.

ADA:
That is it.


CHORUS:
The end is near, and all is well that ends so well.
"""


def pixels(count: int, start: int = 0) -> np.ndarray:
    """Different images, (count, 28, 28) bytes."""
    return ((np.arange(count * 784) * 7 + start) % 256).astype(np.uint8).reshape(count, 28, 28)


def leaf_text(users: Mapping[object, tuple[list, list]]) -> str:
    """A LEAF file: user -> (x, y)."""
    return json.dumps(
        {
            "users": list(users),
            "num_samples": [len(y) for _, y in users.values()],
            "user_data": {str(name): {"x": x, "y": y} for name, (x, y) in users.items()},
        }
    )


def femnist(users: Mapping[str, int], start: int = 0) -> str:
    """FEMNIST as LEAF writes it: user -> number of images."""
    return leaf_text(
        {
            name: (
                (pixels(count, start + n).reshape(count, 784) / 255).round(7).tolist(),
                [(n + i) % 62 for i in range(count)],
            )
            for n, (name, count) in enumerate(users.items())
        }
    )


def leaf_folder(folder: Path, **parts: str) -> Path:
    """A folder with one file for each of train and test."""
    for part, text in parts.items():
        (folder / part).mkdir(parents=True)
        (folder / part / f"all_data_0_{part}.json").write_text(text)
    return folder


def tff_file(path: Path, clients: Mapping[str, dict[str, object]]) -> Path:
    """A file of TensorFlow Federated: client -> its datasets."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file.create_group("examples")
        for name, values in clients.items():
            for key, value in values.items():
                file[f"examples/{name}/{key}"] = value
    return path


def emnist(*counts: int) -> dict[str, dict[str, object]]:
    """FedEMNIST: clients with so many images."""
    return {
        f"f{n:04}_1{n}": {
            "pixels": pixels(count, n).astype(np.float32) / 255,
            "label": np.arange(count, dtype=np.int32) % 10,
        }
        for n, count in enumerate(counts)
    }
