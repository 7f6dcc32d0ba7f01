"""Data sets: prepared files, FashionMNIST, CIFAR-10, synthetic and quadratic data."""

from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from fedmpi.config import DataConfig, validate
from fedmpi.data import originals, sources
from fedmpi.data.originals import prepare, read_cifar_10, read_fashion_mnist
from fedmpi.data.prepared import Dataset, read_dataset, write_dataset
from fedmpi.data.sources import load_dataset
from fedmpi.errors import UserError

IMAGES = Dataset(
    name="images",
    train_inputs=np.arange(6 * 2 * 3 * 3, dtype=np.uint8).reshape(6, 2, 3, 3),
    train_labels=np.array([0, 1, 2, 2, 1, 0]),
    test_inputs=np.arange(2 * 2 * 3 * 3, dtype=np.uint8)[::-1].reshape(2, 2, 3, 3),
    test_labels=np.array([2, 0]),
    num_classes=3,
    mean=(0.5, 0.25),
    std=(0.25, 0.125),
)
FLOATS = Dataset(
    name="floats",
    train_inputs=np.array([[-1.5, 0.0], [1e300, -0.0], [3.25, 1e-300]]),
    train_labels=np.array([1, 0, 1]),
    test_inputs=np.empty((0, 2)),
    test_labels=np.empty(0, np.int64),
    num_classes=2,
)
DATASETS = {
    "uint8": IMAGES,
    "float64": FLOATS,
    "float32": replace(
        FLOATS,
        train_inputs=np.array([[0.1, -2], [7, 1e30], [0, 0]], np.float32),
        test_inputs=np.ones((0, 2), np.float32),
    ),
    "client column": replace(IMAGES, train_clients=np.array([4, 4, 0, 1, 1, 0])),
    "not contiguous": replace(IMAGES, train_inputs=IMAGES.train_inputs.transpose(0, 1, 3, 2)),
}


def assert_same_data(seen: Dataset, expected: Dataset) -> None:
    """All arrays and numbers of two data sets are equal, bit for bit."""
    assert seen.arrays().keys() == expected.arrays().keys()
    for name, array in expected.arrays().items():
        np.testing.assert_array_equal(seen.arrays()[name], array, err_msg=name)
    assert (seen.num_classes, tuple(seen.mean), tuple(seen.std)) == (
        expected.num_classes,
        tuple(expected.mean),
        tuple(expected.std),
    )


# Prepared files.


@pytest.mark.parametrize("kind", DATASETS)
def test_round_trip(tmp_path, kind):
    """A data set comes back from its file bit for bit, with its name, types and digest."""
    write_dataset(tmp_path / "new" / "data.h5", DATASETS[kind])
    seen = load_dataset(DataConfig(dataset=str(tmp_path / "new" / "data.h5")))
    assert_same_data(seen, DATASETS[kind])
    assert seen.name == DATASETS[kind].name
    assert seen.train_inputs.dtype == DATASETS[kind].train_inputs.dtype
    assert seen.digest() == DATASETS[kind].digest()
    assert os.listdir(tmp_path / "new") == ["data.h5"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"train_labels": IMAGES.train_labels.astype(np.uint8)}, id="uint8 labels"),
        pytest.param({"test_labels": IMAGES.test_labels.astype(np.int32)}, id="int32 labels"),
        pytest.param({"num_classes": np.int64(3)}, id="numpy number of classes"),
        pytest.param({"mean": (np.float64(0.5), np.float64(0.25))}, id="numpy mean"),
        pytest.param({"mean": [0.5, 0.25]}, id="mean as a list"),
        pytest.param({"mean": np.array([0.5, 0.25])}, id="mean as an array"),
        pytest.param({"std": (1, 2)}, id="whole numbers"),
        pytest.param({"train_clients": np.array([0, 1, 2, 0, 1, 2], np.uint16)}, id="uint16 clients"),
    ],
)
def test_round_trip_of_what_users_have_in_hand(tmp_path, change):
    """What `write_dataset` accepts can be read again, in whatever number types it was given."""
    written = replace(IMAGES, **change)
    write_dataset(tmp_path / "data.h5", written)
    seen = read_dataset(tmp_path / "data.h5")
    assert_same_data(seen, written)
    assert seen.train_labels.dtype == seen.test_labels.dtype == np.int64


@pytest.mark.parametrize(
    "change",
    [
        {"train_inputs": IMAGES.train_inputs[::-1]},
        {"train_labels": IMAGES.train_labels[::-1] % 2},
        {"test_inputs": IMAGES.test_inputs + np.uint8(1)},
        {"test_labels": np.array([2, 1])},
        {"num_classes": 4},
        {"mean": (0.5, 0.26)},
        {"std": (0.25, 0.13)},
        {"train_clients": np.zeros(6, np.int64)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_digest_covers_everything(change):
    """A change of any part changes the digest."""
    assert replace(IMAGES, **change).digest() != IMAGES.digest()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_labels": np.array([0, 1])}, "6 train inputs but 2 labels"),
        ({"test_labels": np.array([0])}, "2 test inputs but 1 labels"),
        ({"train_inputs": IMAGES.train_inputs.astype(np.int16)}, "type int16"),
        ({"test_inputs": IMAGES.test_inputs[:, :1]}, "shape"),
        ({"test_inputs": IMAGES.test_inputs.astype(np.float32)}, "float32"),
        ({"train_labels": np.array([0, 1, 2, 3, 0, 0])}, "labels outside 0..2"),
        ({"test_labels": np.array([-1, 0])}, "labels outside 0..2"),
        ({"train_labels": np.array([0, 1, 2, 0.5, 0, 0])}, "labels"),
        ({"train_labels": np.zeros((6, 2), np.int64)}, "labels"),
        ({"train_inputs": IMAGES.train_inputs[:0], "train_labels": IMAGES.train_labels[:0]}, "no training"),
        ({"mean": (0.5,)}, "mean and std need 2 numbers"),
        ({"std": (0.5, 0.0)}, "std above 0"),
        ({"train_clients": np.zeros(5, np.int64)}, "5 client ids for 6 samples"),
        ({"train_clients": np.array([0, 0.5, 1, 1, 0, 0])}, "client ids"),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_unusable_data_are_not_written(tmp_path, change, message):
    """Data that no run could use are refused before a file is made, and the message says why."""
    with pytest.raises(UserError, match=message):
        write_dataset(tmp_path / "data.h5", replace(IMAGES, **change))
    assert os.listdir(tmp_path) == []


def _flip_in_inputs(path: Path) -> None:
    """Change one byte among the stored bytes of the training inputs."""
    with h5py.File(path, "r") as file:
        chunk = file["train/inputs"].id.get_chunk_info(0)
    data = bytearray(path.read_bytes())
    data[chunk.byte_offset + chunk.size // 2] ^= 0x10
    path.write_bytes(data)


def _rewrite_inputs(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["train/inputs"][0, 0, 0, 0] += 1


def _delete(name: str) -> object:
    def damage(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            del file[name]

    return damage


def _set(name: str, value: object) -> object:
    def damage(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            file.attrs[name] = value

    return damage


def _delete_attribute(name: str) -> object:
    def damage(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            del file.attrs[name]

    return damage


def _group_for_labels(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["test/labels"]
        file.create_group("test/labels")


def _foreign(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["table"] = [1, 2, 3]


DAMAGE = {
    "flipped byte": (_flip_in_inputs, "prepare it again|cannot be read|damaged"),
    "changed value": (_rewrite_inputs, "do not match the stored digest"),
    "truncated": (lambda path: os.truncate(path, path.stat().st_size // 2), "cannot be read"),
    "empty": (lambda path: os.truncate(path, 0), "cannot be read"),
    "text": (lambda path: path.write_text("label,pixel\n0,1\n"), "cannot be read"),
    "foreign HDF5": (_foreign, "format None"),
    "another format": (_set("format", "fedmpi-run"), "'fedmpi-run'.*accepted is 'fedmpi-data'"),
    "newer": (_set("format_version", 3), "version 3; accepted .* up to version 2"),
    "version as text": (_set("format_version", "one"), "."),
    "no inputs": (_delete("train/inputs"), "cannot be read"),
    "no test labels": (_delete("test/labels"), "cannot be read"),
    "no digest": (_delete_attribute("digest"), "cannot be read"),
    "group for a dataset": (_group_for_labels, "cannot be read"),
    "other number of classes": (_set("num_classes", 7), "do not match the stored digest"),
    "directory": (lambda path: (path.unlink(), path.mkdir()), "."),
    "gone": (lambda path: path.unlink(), "no such file.*fedmpi data prepare"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_file_is_a_user_error(tmp_path, kind):
    """A file that was damaged, or is no prepared data, is refused with its name and the reason."""
    path = tmp_path / "data.h5"
    write_dataset(path, IMAGES)
    damage, message = DAMAGE[kind]
    damage(path)
    with pytest.raises(UserError, match=message) as caught:
        read_dataset(path)
    assert str(path) in str(caught.value)


def test_too_long_name_is_a_user_error(tmp_path):
    """A name that the file system does not take is refused as any missing file is."""
    with pytest.raises(UserError, match=r"data file .*xxx"):
        read_dataset(tmp_path / ("x" * 300 + ".h5"))


def run_python(code: str, *arguments: object) -> subprocess.CompletedProcess:
    """Run code in a process of its own, which may crash."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=60
    )


def test_no_flipped_byte_goes_unnoticed(tmp_path):
    """A flipped byte gives the same data or a UserError; never other data, never a crash.

    Left out is the heap in which HDF5 keeps strings of variable length: the library does not guard it.
    """
    write_dataset(tmp_path / "good.h5", IMAGES)
    result = run_python(
        """
import sys
from pathlib import Path
from fedmpi.data.prepared import read_dataset
from fedmpi.errors import UserError

good, bad = Path(sys.argv[1]), Path(sys.argv[2])
data = good.read_bytes()
expected, refused = read_dataset(good).digest(), 0
heap = range(data.find(b"GCOL"), data.find(b"GCOL") + 4096) if b"GCOL" in data else range(0)
for position in range(0, len(data), 32):
    if position in heap:
        continue
    bad.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
    try:
        assert read_dataset(bad).digest() == expected, f"other data after a flip at {position}"
    except UserError:
        refused += 1
print(refused)
""",
        tmp_path / "good.h5",
        tmp_path / "bad.h5",
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert int(result.stdout) > 50


@pytest.mark.parametrize("failing", ["rename", "write"])
def test_failed_write_leaves_no_trace(tmp_path, monkeypatch, failing):
    """When writing fails, the earlier file stays as it was and nothing else is left behind."""
    path = tmp_path / "data.h5"
    write_dataset(path, FLOATS)
    before = path.read_bytes()

    def fail(*arguments, **options):
        raise OSError(28, "No space left on device")

    if failing == "rename":
        monkeypatch.setattr(os, "replace", fail)
    else:
        monkeypatch.setattr(h5py.Group, "create_dataset", fail)
    with pytest.raises((OSError, UserError), match="No space left"):
        write_dataset(path, IMAGES)
    assert os.listdir(tmp_path) == ["data.h5"]
    assert path.read_bytes() == before


@pytest.mark.parametrize("limit", [0, 1000, 20_000])
def test_full_disk_is_an_error_and_not_a_crash(tmp_path, limit):
    """A disk that fills up while a data set is written gives an error, whatever byte it fills up at."""
    result = run_python(
        """
import resource, sys
import numpy as np
from fedmpi.data.prepared import Dataset, write_dataset
from fedmpi.errors import UserError

inputs = np.random.default_rng(1).random((1000, 10))
data = Dataset("x", inputs, np.zeros(1000, np.int64), inputs[:0], np.zeros(0, np.int64), 2)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    write_dataset(sys.argv[1], data)
except (OSError, UserError):
    print("refused")
""",
        tmp_path / "data.h5",
        limit,
    )
    assert (result.returncode, result.stdout) == (0, "refused\n"), result.stderr[-2000:]
    assert os.listdir(tmp_path) == []


# FashionMNIST.


@pytest.fixture(scope="module")
def fashion() -> Dataset:
    """The real FashionMNIST."""
    if not (originals.SYSTEM_FASHION_MNIST / "train-images-idx3-ubyte.gz").exists():
        pytest.skip("FashionMNIST is not installed (Debian package dataset-fashion-mnist)")
    return read_fashion_mnist(originals.SYSTEM_FASHION_MNIST)


@pytest.fixture(scope="module")
def fashion_mini() -> Dataset:
    """The part of FashionMNIST that comes with fedmpi."""
    return load_dataset(DataConfig(dataset="fashion-mini"))


def test_fashion_mini_is_balanced(fashion_mini):
    """fashion-mini has 600 training and 100 test images of each of 10 labels, 28 x 28, as uint8."""
    assert fashion_mini.train_inputs.shape == (6000, 1, 28, 28)
    assert fashion_mini.test_inputs.shape == (1000, 1, 28, 28)
    assert fashion_mini.train_inputs.dtype == fashion_mini.test_inputs.dtype == np.uint8
    assert np.bincount(fashion_mini.train_labels).tolist() == [600] * 10
    assert np.bincount(fashion_mini.test_labels).tolist() == [100] * 10
    assert (fashion_mini.mean, fashion_mini.std) == ((0.1307,), (0.3081,))


def test_fashion_mini_is_small_and_licensed():
    """The file is below 4 MB and its licence stands beside it."""
    folder = Path(sources.__file__).parent
    assert (folder / "fashion_mini.h5").stat().st_size < 4_000_000
    text = (folder / "fashion_mini.LICENSE").read_text()
    assert "MIT License" in text
    assert "Zalando" in text


@pytest.mark.parametrize(("part", "count"), [("train", 600), ("test", 100)])
def test_fashion_mini_is_the_first_of_each_label(fashion, fashion_mini, part, count):
    """fashion-mini holds the first images of each label of the real data, and no others."""
    labels = getattr(fashion, f"{part}_labels")
    mini_labels = getattr(fashion_mini, f"{part}_labels")
    for label in range(10):
        expected = getattr(fashion, f"{part}_inputs")[labels == label][:count]
        seen = getattr(fashion_mini, f"{part}_inputs")[mini_labels == label]
        np.testing.assert_array_equal(seen, expected)


def test_real_fashion_mnist(fashion):
    """The real data are 60,000 and 10,000 images of 10 equally frequent labels."""
    assert fashion.train_inputs.shape == (60_000, 1, 28, 28)
    assert fashion.test_inputs.shape == (10_000, 1, 28, 28)
    assert np.bincount(fashion.train_labels).tolist() == [6000] * 10
    assert np.bincount(fashion.test_labels).tolist() == [1000] * 10
    assert (fashion.mean, fashion.std) == ((0.1307,), (0.3081,))
    # The paper's normalisation constants are MNIST's; the data's own mean is known as 0.2860.
    assert fashion.train_inputs.mean() / 255 == pytest.approx(0.2860, abs=5e-5)


IDX_FILES = {
    "train-images-idx3-ubyte": (4, 28, 28),
    "train-labels-idx1-ubyte": (4,),
    "t10k-images-idx3-ubyte": (2, 28, 28),
    "t10k-labels-idx1-ubyte": (2,),
}


@pytest.fixture
def tiny_fashion(monkeypatch):
    """Make folders of IDX files with a handful of images, all pixels alike, that pass the MD5 check."""
    digests: dict[str, set] = {name: set() for name in IDX_FILES}
    monkeypatch.setattr(originals, "_FASHION_MD5", {name: name for name in IDX_FILES})

    def check(data: bytes, name: str, path: Path) -> None:
        if hashlib.md5(data).hexdigest() not in digests[name]:
            raise UserError(f"data file {path}: MD5")

    monkeypatch.setattr(originals, "_check_md5", check)

    def make(folder: Path, pixel: int, *, packed: bool = False) -> Path:
        folder.mkdir(parents=True)
        for name, shape in IDX_FILES.items():
            value = pixel if len(shape) == 3 else 3
            data = struct.pack(f">4B{len(shape)}I", 0, 0, 8, len(shape), *shape)
            data += bytes([value]) * int(np.prod(shape))
            digests[name].add(hashlib.md5(data).hexdigest())
            target = folder / (f"{name}.gz" if packed else name)
            target.write_bytes(gzip.compress(data) if packed else data)
        return folder

    return make


def fashion_config(root: Path) -> DataConfig:
    """[data] with FashionMNIST below `root`."""
    return DataConfig(dataset="fashion-mnist", root=str(root))


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files(tmp_path, tiny_fashion, packed):
    """IDX files give images and labels of the shapes in their headers, plain or gzipped."""
    data = read_fashion_mnist(tiny_fashion(tmp_path / "idx", 9, packed=packed))
    assert data.train_inputs.shape == (4, 1, 28, 28)
    assert data.test_inputs.shape == (2, 1, 28, 28)
    assert set(data.train_inputs.ravel().tolist()) == {9}
    assert data.train_labels.tolist() == [3, 3, 3, 3]
    assert data.test_labels.tolist() == [3, 3]


def test_search_order_of_fashion_mnist(tmp_path, monkeypatch, tiny_fashion):
    """A prepared file comes before torchvision's folder, a plain folder and the system's, in this order."""
    monkeypatch.setattr(
        originals, "SYSTEM_FASHION_MNIST", tiny_fashion(tmp_path / "system", 1, packed=True)
    )
    root = tmp_path / "root"

    def found() -> int:
        return int(load_dataset(fashion_config(root)).train_inputs[0, 0, 0, 0])

    assert found() == 1
    tiny_fashion(root / "fashion-mnist", 2)
    assert found() == 2
    tiny_fashion(root / "FashionMNIST" / "raw", 3)
    assert found() == 3
    prepare("fashion-mnist", root, tiny_fashion(tmp_path / "import", 4))
    assert found() == 4


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar-10"])
def test_not_found_names_the_command(tmp_path, monkeypatch, name):
    """Data that are nowhere to be found give an error with the command that brings them."""
    monkeypatch.setattr(originals, "SYSTEM_FASHION_MNIST", tmp_path / "nothing")
    root = tmp_path / "my data"
    with pytest.raises(UserError, match=f"fedmpi data prepare {name} --root ") as caught:
        load_dataset(DataConfig(dataset=name, root=str(root)))
    assert str(root / f"{name}.h5") in str(caught.value)


def test_wrong_fashion_file_fails_by_md5(tmp_path, monkeypatch):
    """An IDX file with other contents than the published ones is refused by its MD5."""
    monkeypatch.setattr(originals, "SYSTEM_FASHION_MNIST", tmp_path / "nothing")
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    name = "train-images-idx3-ubyte"
    (folder / name).write_bytes(struct.pack(">4B3I", 0, 0, 8, 3, 1, 28, 28) + bytes(784))
    with pytest.raises(UserError, match=r"MD5 is .* expected f4a8712d7a061bf5bd6d2ca38dc4d50a") as caught:
        load_dataset(fashion_config(tmp_path))
    assert str(folder / name) in str(caught.value)


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _spoil(data: bytes) -> bytes:
    return data[:10] + bytes([data[10] ^ 0xFF]) + data[11:]


@pytest.mark.parametrize(
    "damage",
    [_cut, _spoil, lambda data: b"no gzip", lambda data: b"", lambda data: data[:-8] + bytes(8)],
    ids=["truncated", "spoilt stream", "other file", "empty", "wrong checksum"],
)
def test_damaged_gzip_is_a_user_error(tmp_path, tiny_fashion, damage):
    """A gzipped file that cannot be unpacked is refused with its name."""
    folder = tiny_fashion(tmp_path / "idx", 5, packed=True)
    path = folder / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=r"t10k-images-idx3-ubyte\.gz"):
        read_fashion_mnist(folder)


def test_missing_fashion_file_is_named(tmp_path, tiny_fashion):
    """A folder with three of the four files gives an error that names the fourth."""
    folder = tiny_fashion(tmp_path / "idx", 5)
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(UserError, match="t10k-labels-idx1-ubyte is missing"):
        read_fashion_mnist(folder)


def test_prepare_imports_a_folder(tmp_path, tiny_fashion):
    """`data prepare --from DIR` stores the files of a folder as ROOT/NAME.h5."""
    folder = tiny_fashion(tmp_path / "idx", 5)
    path, data = prepare("fashion-mnist", tmp_path / "root", folder)
    assert path == tmp_path / "root" / "fashion-mnist.h5"
    assert_same_data(read_dataset(path), read_fashion_mnist(folder))
    assert data.digest() == read_dataset(path).digest()


def test_prepare_downloads_only_what_is_missing(tmp_path, monkeypatch, tiny_fashion):
    """Without `--from`, files that are there are used; only where none are, they are downloaded."""
    downloads = []

    def download(name: str, root: Path) -> None:
        downloads.append(name)
        tiny_fashion(root / "FashionMNIST" / "raw", 6)

    monkeypatch.setattr(originals, "_download", download)
    monkeypatch.setattr(originals, "SYSTEM_FASHION_MNIST", tmp_path / "nothing")
    assert prepare("fashion-mnist", tmp_path, None)[1].train_inputs[0, 0, 0, 0] == 6
    assert downloads == ["fashion-mnist"]
    prepare("fashion-mnist", tmp_path, None)
    assert downloads == ["fashion-mnist"]


def test_prepare_refuses_what_it_does_not_know(tmp_path):
    """An unknown name is refused with the known ones, an import folder without the files with its name."""
    with pytest.raises(UserError, match="accepted: fashion-mnist, cifar-10"):
        prepare("mnist", tmp_path, None)
    with pytest.raises(UserError, match=f"no test_batch in {tmp_path}"):
        prepare("cifar-10", tmp_path, tmp_path)


# CIFAR-10.


def python2_batch(rows: np.ndarray, labels: list[int]) -> bytes:
    """A batch as Python 2 and its numpy pickled it in 2009, opcode by opcode."""
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
    array += b"(I1\n(I%d\nI3072\ntcnumpy\ndtype\n(S'u1'\nI0\nI1\ntR" % len(rows)
    array += b"(I3\nS'|'\nNNNI-1\nI-1\nI0\ntbI00\n"
    array += b"T" + struct.pack("<i", rows.size) + rows.tobytes() + b"tb"
    entries = b"U\x0bbatch_labelU\x10training batch 1"
    entries += b"U\x06labels](" + b"".join(b"I%d\n" % label for label in labels) + b"e"
    entries += b"U\x04data" + array
    entries += b"U\x09filenames](U\x05a.pngU\x05b.pnge"
    return b"\x80\x02}(" + entries + b"u."


@pytest.fixture
def cifar_folder(tmp_path, monkeypatch):
    """Make a folder of six batch files and declare their MD5 the right ones."""

    def make(contents: dict[str, bytes]) -> Path:
        folder = tmp_path / "cifar-10-batches-py"
        folder.mkdir()
        for name, data in contents.items():
            (folder / name).write_bytes(data)
        digests = {name: hashlib.md5(data).hexdigest() for name, data in contents.items()}
        monkeypatch.setattr(originals, "_CIFAR_MD5", digests)
        return folder

    return make


BATCH_NAMES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]


def test_cifar_batches(cifar_folder):
    """Python 2 batches are read in order; a row is a red, a green and a blue plane of 32 x 32."""
    rows = np.random.default_rng(1).integers(256, size=(6, 2, 3072)).astype(np.uint8)
    folder = cifar_folder({name: python2_batch(rows[i], [i, 9 - i]) for i, name in enumerate(BATCH_NAMES)})
    data = load_dataset(DataConfig(dataset="cifar-10", root=str(folder.parent)))
    assert data.train_inputs.shape == (10, 3, 32, 32)
    assert data.test_inputs.shape == (2, 3, 32, 32)
    assert data.train_labels.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]
    assert data.test_labels.tolist() == [5, 4]
    # Sample 3 is row 1 of batch 2; plane 2 (blue), line 30, column 7 is at 2 * 1024 + 30 * 32 + 7.
    assert data.train_inputs[3, 2, 30, 7] == rows[1, 1, 3015]
    np.testing.assert_array_equal(data.test_inputs.reshape(2, 3072), rows[5])
    assert data.mean == (0.4914, 0.4822, 0.4465)
    assert data.std == (0.2023, 0.1994, 0.2010)


class Call:
    """Pickles as a call of a function, made when it is unpickled."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple:
        return self.call


MALICIOUS = {
    "os.mkdir": lambda marker: Call(os.mkdir, marker),
    "exec": lambda marker: Call(exec, f"open({marker!r}, 'w')"),
    "numpy.save": lambda marker: Call(np.save, marker, [1]),
    "numpy.memmap": lambda marker: Call(np.memmap, marker, "u1", "w+", 0, 4),
}


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("kind", MALICIOUS)
def test_malicious_pickle_is_not_executed(tmp_path, cifar_folder, kind, protocol):
    """A pickle that calls a function is refused and the call is not made, even where its MD5 fits."""
    marker = str(tmp_path / "marker.npy")
    data = pickle.dumps({b"data": MALICIOUS[kind](marker), b"labels": [0]}, protocol)
    folder = cifar_folder(dict.fromkeys(BATCH_NAMES, data))
    with pytest.raises((pickle.UnpicklingError, UserError), match="not allowed"):
        read_cifar_10(folder)
    assert not os.path.exists(marker)
    pickle.loads(data)
    assert os.path.exists(marker), "the pickle is harmless, the test proves nothing"


def test_wrong_cifar_file_is_not_even_unpickled(tmp_path, monkeypatch):
    """A batch of another MD5 than the published one is refused before it is unpickled."""

    def unpickle(*arguments, **options):
        raise AssertionError("unpickled before it was checked")

    monkeypatch.setattr(originals, "_ArrayUnpickler", unpickle)
    (tmp_path / "data_batch_1").write_bytes(python2_batch(np.zeros((1, 3072), np.uint8), [0]))
    with pytest.raises(UserError, match=r"MD5 is .*, expected c99cafc152244af753f735de768cd75f"):
        read_cifar_10(tmp_path)


def test_missing_cifar_file_is_named(tmp_path):
    """A folder without the batches gives an error that names the first missing one."""
    with pytest.raises(UserError, match="data_batch_1 cannot be read"):
        read_cifar_10(tmp_path)


def test_real_cifar_10():
    """The real CIFAR-10 is 50,000 and 10,000 images of 10 equally frequent labels, of known means."""
    folder = os.environ.get("FEDMPI_CIFAR")
    if not folder:
        pytest.skip("FEDMPI_CIFAR does not name a folder with CIFAR-10's python batches")
    data = read_cifar_10(Path(folder))
    assert data.train_inputs.shape == (50_000, 3, 32, 32)
    assert np.bincount(data.train_labels).tolist() == [5000] * 10
    assert np.bincount(data.test_labels).tolist() == [1000] * 10
    means = data.train_inputs.mean(axis=(0, 2, 3)) / 255
    np.testing.assert_allclose(means, [0.4914, 0.4822, 0.4465], atol=1e-4)


# Synthetic and quadratic data.


def synthetic_config(**keys: object) -> DataConfig:
    """[data] of a synthetic data set."""
    defaults = {"train_samples": 50, "test_samples": 20, "noise_std": 0.25, "shape": [1, 4, 4]}
    return DataConfig(dataset="synthetic", **(defaults | keys))


@pytest.mark.parametrize(
    ("shape", "channels"), [([7], 1), ([2, 5], 1), ([1, 28, 28], 1), ([3, 4, 6], 3), ([2, 2, 2, 2], 1)]
)
def test_synthetic_has_any_shape(tmp_path, shape, channels):
    """Samples have the shape asked for, and as many means as channels: the data can be stored."""
    data = load_dataset(synthetic_config(shape=shape))
    assert data.train_inputs.shape == (50, *shape)
    assert data.test_inputs.shape == (20, *shape)
    assert data.train_inputs.dtype == np.uint8
    assert len(data.mean) == len(data.std) == channels
    write_dataset(tmp_path / "data.h5", data)
    assert_same_data(read_dataset(tmp_path / "data.h5"), data)


@pytest.mark.parametrize(
    ("train", "test", "classes"), [(50, 20, 10), (11, 0, 3), (4097, 5000, 7), (1, 1, 2)]
)
def test_synthetic_sizes_and_balance(train, test, classes):
    """There are as many samples as asked for, and no label has two more than another."""
    data = load_dataset(
        synthetic_config(train_samples=train, test_samples=test, num_classes=classes, shape=[3])
    )
    for labels, count in ((data.train_labels, train), (data.test_labels, test)):
        assert len(labels) == count
        counts = np.bincount(labels, minlength=classes)
        assert len(counts) == classes
        assert counts.max() - counts.min() <= 1


def test_synthetic_is_prototypes_plus_noise():
    """Without noise all samples of a label are alike; noise has the spread asked for, in train and test."""
    clean = load_dataset(synthetic_config(noise_std=0.0))
    for label in range(10):
        assert len(np.unique(clean.train_inputs[clean.train_labels == label], axis=0)) == 1
    assert len(np.unique(clean.train_inputs, axis=0)) == 10

    sizes = {"train_samples": 2000, "test_samples": 2000, "shape": [64]}
    clean = load_dataset(synthetic_config(noise_std=0.0, **sizes))
    noisy = load_dataset(synthetic_config(noise_std=0.02, **sizes))
    inner = (clean.train_inputs > 40) & (clean.train_inputs < 215)  # where nothing is clipped
    train = noisy.train_inputs.astype(float) - clean.train_inputs
    test = noisy.test_inputs.astype(float) - clean.test_inputs
    assert train[inner].std() == pytest.approx(0.02 * 255, rel=0.02)
    assert np.abs(train[inner].mean()) < 0.1
    assert not np.array_equal(train, test)


def test_synthetic_does_not_depend_on_the_seed(small_config):
    """The data are part of the problem: the same for every run.seed, others for other settings."""
    digests = [
        load_dataset(validate.load(small_config, [f"run.seed={seed}"]).data).digest() for seed in (1, 2, 3)
    ]
    assert len(set(digests)) == 1
    other = load_dataset(validate.load(small_config, ["data.noise_std=0.3"]).data).digest()
    assert other != digests[0]


def test_quadratic():
    """Each client has one sample, its center; there is no test set and nothing to normalise."""
    data = load_dataset(DataConfig(dataset="quadratic", centers=[[1.0, 2.0], [-3.0, 0.5], [0.0, 0.0]]))
    assert data.train_inputs.tolist() == [[1.0, 2.0], [-3.0, 0.5], [0.0, 0.0]]
    assert data.train_inputs.dtype == np.float64
    assert data.train_clients.tolist() == [0, 1, 2]
    assert data.shape == (2,)
    assert len(data.test_inputs) == len(data.test_labels) == 0
    assert data.mean == data.std == ()
