"""`fedmpi data prepare`: convert a data set to one checked HDF5 file, on a machine with internet."""

from __future__ import annotations

from pathlib import Path

from fedmpi.data.originals import prepare as prepare_dataset
from fedmpi.errors import UserError
from fedmpi.results.text import bytes_text


def prepare(name: str, root: str, source: str | None) -> int:
    """Store the data set as ROOT/NAME.h5."""
    try:
        path, data = prepare_dataset(name, Path(root), Path(source) if source else None)
    except OSError as error:
        place = error.filename or root
        raise UserError(f"data prepare {name}: {place}: {error.strerror or error}") from None
    print(
        f"{path} ({bytes_text(path.stat().st_size)}): {len(data.train_labels):,} train, "
        f"{len(data.test_labels):,} test samples of shape {data.shape}, {data.num_classes} labels\n"
        f'digest {data.digest()}\nuse it with data.dataset = "{name}", data.root = "{root}"'
    )
    return 0
