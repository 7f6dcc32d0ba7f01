"""`fedmpi data convert`: data whose clients are real become one prepared file."""

from __future__ import annotations

import gzip
import json
import lzma
import re
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

import fedmpi
from fedmpi.data.natural import CONVERTERS, Options, assembled
from fedmpi.data.natural.clients import Client, Source
from fedmpi.data.natural.sequences import frequent_words, windows
from fedmpi.data.prepared import Dataset, read_dataset
from fedmpi.errors import UserError
from tests.support.configs import ROOT
from tests.support.natural_data import (
    PLAYS,
    emnist,
    femnist,
    leaf_folder,
    leaf_text,
    pixels,
    tff_file,
)


def converted(kind: str, path: Path, **options: object) -> Dataset:
    """The data set that a source gives."""
    chosen = Options(**options)
    return assembled(CONVERTERS[kind](path, chosen), chosen, "made").dataset


def by_client(data: Dataset) -> dict[str, tuple[int, int]]:
    """Samples to train and to test on of each client that trains."""
    return {
        name: (int((data.train_clients == n).sum()), int((data.test_clients == n).sum()))
        for n, name in enumerate(data.client_names)
        if n <= data.train_clients.max()
    }


# LEAF.


def test_femnist_of_leaf(tmp_path):
    """Pixels come back byte for byte, users keep their test samples; a user of test alone is held out."""
    train, test = femnist({"f1_a": 3, "f2_b": 2}), femnist({"f2_b": 1, "f9_z": 4}, start=50)
    data = converted("leaf", leaf_folder(tmp_path, train=train, test=test))
    assert data.train_inputs.dtype == np.uint8
    assert data.shape == (1, 28, 28)
    np.testing.assert_array_equal(data.train_inputs[:3, 0], pixels(3))
    np.testing.assert_array_equal(data.held_out_inputs[:, 0], pixels(4, 51))
    assert data.train_labels.tolist() == [0, 1, 2, 1, 2]
    assert by_client(data) == {"f1_a": (3, 0), "f2_b": (2, 1)}
    assert data.client_names == ("f1_a", "f2_b", "f9_z")
    assert data.held_out_clients.tolist() == [2] * 4
    np.testing.assert_allclose(data.mean[0], data.train_inputs.mean() / 255)


def test_files_of_leaf_in_their_order(tmp_path):
    """Users of data_10 come after those of data_9, and one in two files is refused."""
    for number, name in ((10, "last"), (9, "first")):
        (tmp_path / f"data_{number}.json").write_text(femnist({name: 5}))
    assert converted("leaf", tmp_path).client_names == ("first", "last")
    (tmp_path / "data_11.json").write_text(femnist({"last": 5}))
    with pytest.raises(UserError, match=r'user "last" is in data_10.json and in data_11.json'):
        converted("leaf", tmp_path)


def test_numbers_of_leaf(tmp_path):
    """Samples that are no images of 28 x 28 are features as they are."""
    (tmp_path / "data.json").write_text(leaf_text({"a": ([[0.5, -3.0], [1e3, 2]] * 5, [0.0, 1] * 5)}))
    data = converted("leaf", tmp_path / "data.json", test_share=0.0)
    assert data.train_inputs.dtype == np.float32
    assert data.train_inputs[:2].tolist() == [[0.5, -3.0], [1e3, 2.0]]
    assert data.train_labels.tolist() == [0, 1] * 5


def test_shakespeare_of_leaf(tmp_path):
    """Of LEAF's windows only the character after the text is to be predicted."""
    (tmp_path / "data.json").write_text(leaf_text({"a": (["  ab", " abc"], ["c", "a"])}))
    source = CONVERTERS["leaf"](tmp_path / "data.json", Options())
    data = converted("leaf", tmp_path / "data.json")
    assert (data.num_tokens, data.num_classes) == (4, 4)
    assert source.vocabulary == (" ", "a", "b", "c")
    assert source.clients[0].inputs.tolist() == [[0, 0, 1, 2], [0, 1, 2, 3]]
    assert source.clients[0].labels.tolist() == [[-1, -1, -1, 3], [-1, -1, -1, 1]]


def test_tweets_of_leaf(tmp_path):
    """Tweets become the words that are frequent in training, in order or counted."""
    tweets = {
        "ann": ([["1", "Mon", "q", "ann", "Good good day!"], ["2", "Tue", "q", "ann", "Bad day"]], [1, 0])
    }
    (tmp_path / "data.json").write_text(leaf_text(tweets))
    source = CONVERTERS["leaf"](tmp_path / "data.json", Options(length=3, vocabulary=5))
    assert source.vocabulary == ("<pad>", "<unk>", "day", "good", "!")
    assert source.clients[0].inputs.tolist() == [[3, 3, 2], [1, 2, 0]]
    sequences = converted("leaf", tmp_path / "data.json", length=3, vocabulary=5)
    assert (sequences.num_tokens, sequences.num_classes) == (5, 2)
    data = converted("leaf", tmp_path / "data.json", words="bag", vocabulary=5, test_share=0.0)
    assert data.num_tokens == 0
    assert data.train_inputs.tolist() == [[0, 0, 1, 2, 1], [0, 1, 1, 0, 0]]
    assert (data.num_classes, data.train_labels.tolist()) == (2, [1, 0])


# TensorFlow Federated.


def test_fedemnist_of_tff(tmp_path):
    """Images and labels of each client, byte for byte, with test samples and held-out clients."""
    tff_file(tmp_path / "fed_emnist_train.h5", emnist(4, 2))
    tff_file(tmp_path / "fed_emnist_test.h5", emnist(1, 3))
    tff_file(tmp_path / "fed_emnist_held_out.h5", {"new": emnist(5)["f0000_10"]})
    data = converted("tff", tmp_path)
    np.testing.assert_array_equal(data.train_inputs[:4, 0], pixels(4))
    assert by_client(data) == {"f0000_10": (4, 1), "f0001_11": (2, 3)}
    assert data.held_out_clients.tolist() == [2] * 5
    assert data.num_classes == 5


def test_coloured_images_of_tff(tmp_path):
    """CIFAR-100's layout: bytes with channels at the end."""
    image = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    path = tff_file(tmp_path / "one.h5", {"0": {"image": image, "label": np.array([3, 1])}})
    data = converted("tff", path, test_share=0.0)
    assert data.shape == (3, 4, 5)
    np.testing.assert_array_equal(np.moveaxis(data.train_inputs, 1, 3), image)


def test_shakespeare_of_tff(tmp_path):
    """Each snippet is cut into sequences by itself; its characters count once each."""
    path = tff_file(tmp_path / "shakespeare_train.h5", {"ROLE": {"snippets": [b"abcde", b"ba"]}})
    (client,) = CONVERTERS["tff"](path, Options(length=3)).clients
    assert client.inputs.tolist() == [[0, 1, 2], [3, 0, 0], [1, 0, 0]]
    assert client.labels.tolist() == [[1, 2, 3], [4, -1, -1], [0, -1, -1]]


# Folders and tables.


@pytest.mark.parametrize(("mode", "shape"), [("L", (1, 4, 6)), ("RGB", (3, 4, 6))])
def test_folders_of_pictures(tmp_path, mode, shape):
    """One folder a client, one a label in it; labels that are numbers in their order."""
    draws = np.random.default_rng(0)
    for client, labels in (("10", ("2", "10")), ("9", ("10",))):
        for label in labels:
            (tmp_path / client / label).mkdir(parents=True)
            size = (4, 6) if mode == "L" else (4, 6, 3)
            picture = draws.integers(0, 256, size, np.uint8)
            Image.fromarray(picture).save(tmp_path / client / label / "one.png")
    data = converted("folder", tmp_path, test_share=0.0)
    assert data.client_names == ("9", "10")
    assert data.class_names == ("2", "10")
    assert data.train_labels.tolist() == [1, 0, 1]
    assert data.shape == shape
    last = data.train_inputs[-1]
    np.testing.assert_array_equal(
        last[0],
        np.asarray(Image.open(tmp_path / "10" / "10" / "one.png").convert(mode)).reshape(4, 6, -1)[..., 0],
    )


def test_folders_of_arrays(tmp_path):
    """inputs.npy and labels.npy of each client, for training, for testing, and of held-out clients."""
    for part, client, count in (("train", "a", 3), ("test", "a", 2), ("held-out", "b", 1)):
        folder = tmp_path / part / client
        folder.mkdir(parents=True)
        np.save(folder / "inputs.npy", np.full((count, 4), count, np.float64))
        np.save(folder / "labels.npy", np.arange(count))
    data = converted("folder", tmp_path)
    assert by_client(data) == {"a": (3, 2)}
    assert data.train_inputs.dtype == np.float32
    assert data.held_out_inputs.tolist() == [[1.0] * 4]


def test_folders_of_texts(tmp_path):
    """Each text file is a text; of two clients one may be shorter."""
    for client, text in (("ada", "to be"), ("ben", "or")):
        (tmp_path / client).mkdir()
        (tmp_path / client / "a.txt").write_text(text)
    source = CONVERTERS["folder"](tmp_path, Options(length=4))
    assert [len(client) for client in source.clients] == [1, 1]
    assert source.vocabulary == (" ", "b", "e", "o", "r", "t")


TABLE = "user,height,width,kind\nu2,1,10,cat\nu1,2,20,dog\nu2,3,30,dog\nu1,4,40,cat\nu2,5,60,ant\n"


def test_tables(tmp_path):
    """Clients as they appear, names of labels in alphabetical order, features scaled if asked for."""
    (tmp_path / "t.csv").write_text(TABLE)
    columns = {"client_column": "user", "label_column": "kind", "test_share": 0.0}
    data = converted("csv", tmp_path / "t.csv", **columns)
    assert data.client_names == ("u2", "u1")
    assert data.class_names == ("ant", "cat", "dog")
    assert data.train_labels.tolist() == [1, 2, 0, 2, 1]
    assert data.train_inputs[:, 0].tolist() == [1, 3, 5, 2, 4]
    scaled = converted("csv", tmp_path / "t.csv", **columns, standardise=True).train_inputs
    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(scaled.std(axis=0), 1, atol=1e-6)


# Texts.


def test_windows_predict_each_character_once():
    """Sequences follow each other without gap or overlap; padding has no label."""
    text = "abracadabra"
    number = {c: n for n, c in enumerate(sorted(set(text)))}
    for length in range(1, 14):
        inputs, labels = windows([text, "a", ""], number, length)
        assert [number[c] for c in text[1:]] == labels[labels >= 0].tolist()
        assert [number[c] for c in text[:-1]] == inputs[labels >= 0].tolist()


def test_frequent_words_do_not_depend_on_order():
    """Equally frequent words are taken by the alphabet."""
    assert (
        frequent_words(["b a c", "c"], 4)
        == frequent_words(["c", "c a b"], 4)
        == ("<pad>", "<unk>", "c", "a")
    )


@pytest.mark.parametrize("suffix", ["", ".xz", ".gz"])
def test_plays(tmp_path, suffix):
    """Roles are numbered as they appear, and what each says is one text; packed or not."""
    path = tmp_path / f"plays.txt{suffix}"
    pack = {"": lambda data: data, ".xz": lzma.compress, ".gz": gzip.compress}[suffix]
    path.write_bytes(pack(PLAYS.encode()))
    source = CONVERTERS["plays"](path, Options(length=100))
    assert [client.name for client in source.clients] == ["ADA", "BEN", "CHORUS"]
    (tokens,) = source.clients[0].inputs
    said = "".join(source.vocabulary[token] for token in tokens[: len("To be, or not.\nThat is it.") - 1])
    assert said == "To be, or not.\nThat is it"


# Splits.


def source_of(*counts: int, is_ordered: bool = False) -> Source:
    """Clients with so many samples, all different."""
    first = np.cumsum([0, *counts])
    return Source(
        what="source",
        clients=[
            Client(
                f"c{n}",
                np.arange(first[n], first[n] + count, dtype=np.float32)[:, None],
                np.zeros(count, int),
            )
            for n, count in enumerate(counts)
        ],
        is_ordered=is_ordered,
    )


def test_a_share_is_for_testing():
    """Every sample is in one set; a client with one sample trains on it; texts are tested at their end."""
    for is_ordered in (False, True):
        data = assembled(source_of(10, 1, 5, is_ordered=is_ordered), Options(), "x").dataset
        assert by_client(data) == {"c0": (8, 2), "c1": (1, 0), "c2": (4, 1)}
        everything = np.concatenate([data.train_inputs, data.test_inputs])[:, 0]
        assert sorted(everything.tolist()) == list(range(16))
    assert data.test_inputs[:, 0].tolist() == [8, 9, 15]
    again = [assembled(source_of(10, 1, 5), Options(seed=seed), "x").dataset.digest() for seed in (1, 1, 2)]
    assert again[0] == again[1] != again[2]


def test_held_out_clients(tmp_path):
    """Clients that are drawn never train: all their samples are a set of its own, under ids of its own."""
    data = assembled(source_of(*range(1, 11)), Options(held_out=0.3), "x").dataset
    train, third = set(data.train_clients.tolist()), set(data.held_out_clients.tolist())
    assert (train, third) == (set(range(7)), {7, 8, 9})
    names = [data.client_names[n] for n in sorted(third)]
    assert names != ["c7", "c8", "c9"]
    sizes = np.bincount(data.held_out_clients)[7:].tolist()
    assert sizes == [int(name[1:]) + 1 for name in names]
    with pytest.raises(UserError, match=r"--held-out 0\.9 leaves none of 2 clients"):
        assembled(source_of(3, 3), Options(held_out=0.9), "x")


def test_small_clients_are_left_out_by_name():
    """What --min-samples leaves out is told."""
    made = assembled(source_of(5, 0, 2), Options(min_samples=3), "x")
    assert made.left_out == ["c1", "c2"]
    assert made.dataset.client_names == ("c0",)


# Bad input.


def damaged_json(folder: Path) -> Path:
    """The first half of a LEAF file."""
    text = femnist({"a": 2})
    (folder / "data.json").write_text(text[: len(text) // 2])
    return folder / "data.json"


def damaged_hdf5(folder: Path) -> Path:
    """The first half of a TFF file."""
    path = tff_file(folder / "emnist_train.h5", emnist(30, 30))
    path.write_bytes(path.read_bytes()[:20_000])
    return path


def written(name: str, content: str | bytes) -> Callable[[Path], Path]:
    """A file with this content."""

    def write(folder: Path) -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def client_folder(name: str, content: bytes) -> Callable[[Path], Path]:
    """A folder of clients with one such file."""

    def write(folder: Path) -> Path:
        written(name, content)(folder / "clients")
        return folder / "clients"

    return write


SHORT = json.loads(femnist({"a": 3, "b": 2}))
del SHORT["user_data"]["b"]
COUNTED = json.loads(femnist({"a": 3})) | {"num_samples": [7]}
BAD = {
    "a truncated JSON": ("leaf", damaged_json, ["not valid JSON", "half a download? Fetch it again"]),
    "an archive as JSON": (
        "leaf", written("a.json", gzip.compress(b"x")),
        ["not a text file", "unpack it"],
    ),
    "another JSON": ("leaf", written("a.json", "[1]"), ['expected "users", "num_samples" and "user_data"']),
    "a user without data": ("leaf", written("a.json", json.dumps(SHORT)), ['user "b"', "half a file?"]),
    "fewer samples than counted": (
        "leaf", written("a.json", json.dumps(COUNTED)), ["3 samples, but num_samples says 7"],
    ),
    "mixed client ids": (
        "leaf", written("a.json", leaf_text({1: ([[1.0]], [0]), "b": ([[2.0]], [1])})),
        ["some client ids are numbers (1), others are texts ('b')", "quotation marks"],
    ),
    "a user without samples": (
        "leaf", written("a.json", leaf_text({"a": ([[1.0]], [0]), "b": ([], [])})),
        ['client "b" has no samples to train on', "--min-samples 1"],
    ),
    "pixels out of range": (
        "leaf", written("a.json", leaf_text({"a": ([[255.0] * 784], [0])})), ["pixels from 255", "0 to 1"],
    ),
    "samples of different lengths": (
        "leaf", written("a.json", leaf_text({"a": ([[1.0, 2], [3.0]], [0, 1])})), ["expected 2 numbers"],
    ),
    "images and texts": (
        "leaf",
        written("a.json", leaf_text({"a": ([[1.0]], [0]), "b": (["to be"], ["!"])})),
        ['user "b"', "'to be'; those of other users are numbers"],
    ),
    "texts and images": (
        "leaf",
        written("a.json", leaf_text({"a": (["to be"], ["!"]), "b": ([[1.0]], [0])})),
        ["some samples are texts and others are not"],
    ),
    "labels that are no integers": (
        "leaf", written("a.json", leaf_text({"a": ([[1.0]], ["x"])})), ['user "a": labels such as \'x\''],
    ),
    "negative labels": (
        "leaf", written("a.json", leaf_text({"a": ([[1.0]], [-2])})),
        ['client "a" has label -2', "expected 0 to"],
    ),
    "no file": ("leaf", lambda folder: folder / "no", ["no such file or folder"]),
    "an empty folder": ("leaf", lambda folder: folder, ["nothing to read"]),
    "test data alone": (
        "leaf", lambda folder: leaf_folder(folder, test=femnist({"a": 2})),
        ["folder test", "none of the name train"],
    ),
    "a truncated HDF5": ("tff", damaged_hdf5, ["it is not a whole HDF5 file", "half a download"]),
    "an archive as HDF5": ("tff", written("a.h5", b"BZh9" * 99), ["cannot be read", "unpack it again"]),
    "another HDF5": (
        "tff", lambda folder: tff_file(folder / "a.h5", {"x": {"tokens": [1]}}),
        ["has tokens; expected pixels"],
    ),
    "fewer labels than images": (
        "tff", lambda folder: tff_file(folder / "a.h5", {"x": {"pixels": pixels(3), "label": [1, 2]}}),
        ["3 images, but 2 labels"],
    ),
    "a folder without training file": (
        "tff", lambda folder: folder,
        ["no file whose name ends in train.h5"],
    ),
    "images of different sizes": (
        "tff",
        lambda folder: tff_file(
            folder / "a.h5",
            {str(w): {"pixels": np.zeros((2, 4, w), np.uint8), "label": [0, 1]} for w in (4, 5)},
        ),
        ['client "5" has shape (1, 4, 5)', '"4" (1, 4, 4)'],
    ),
    "half a picture": (
        "folder", client_folder("ada/0/one.png", b"\x89PNG\r\n\x1a\n\x00\x00"), ["one.png", "half a file?"],
    ),
    "half an array": (
        "folder", client_folder("ada/inputs.npy", b"\x93NUMPY\x01"),
        ["inputs.npy", "half a file?"],
    ),
    "a client without pictures": ("folder", client_folder("ada/0/note.md", b"hello"), ["no pictures"]),
    "a table without the column": (
        "csv", written("a.csv", "clint,x,label\n1,2,0\n"),
        ["did you mean clint?"],
    ),
    "a table cut off": (
        "csv", written("a.csv", "client,x,label\n1,2,0\n1,3"),
        ["line 3: 2 values for 3 columns"],
    ),
    "words as features": ("csv", written("a.csv", "client,x,label\n1,big,0\n"), ["line 2: x 'big'"]),
    "a table with mixed ids": (
        "csv", written("a.csv", "client,x,label\n1,2,0\nada,2,0\n"), ["numbers (1)", "texts ('ada')"],
    ),
    "an empty table": ("csv", written("a.csv", ""), ["line 1: no column 'client'"]),
    "half an archive of plays": (
        "plays", written("a.txt.xz", lzma.compress(PLAYS.encode() * 99)[:-20]),
        ["cannot be unpacked", "Fetch it"],
    ),
    "plays without roles": (
        "plays", written("a.txt", "Once upon a time"),
        ["speech 1", 'expected "ROLE:"'],
    ),
    "plays in another encoding": ("plays", written("a.txt", b"A:\n\xff\xfe"), ["not a text in UTF-8"]),
    "a role without words": (
        "plays", written("a.txt", "ADA:\nHello.\n\nBEN:\n"),
        ['client "BEN" has no samples'],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input(tmp_path, case):
    """What is not whole or does not fit is refused in a sentence that names the place."""
    kind, make, expected = BAD[case]
    path = make(tmp_path)
    with pytest.raises(UserError) as caught:
        converted(kind, path)
    for words in expected:
        assert words in str(caught.value)


def test_labels_out_of_range(tmp_path):
    """With --num-classes a label that is too large is refused, with the client's name."""
    (tmp_path / "data.json").write_text(femnist({"a": 3, "b": 5}))
    with pytest.raises(UserError, match=r'client "b" has label 5; expected 0 to 3'):
        converted("leaf", tmp_path / "data.json", num_classes=4)


# The command.


def test_convert(tmp_path, fedmpi_cli):
    """The command writes a file that a run takes with the natural partition, and says what is in it."""
    leaf_folder(
        tmp_path / "leaf", train=femnist({"a": 6, "b": 4, "c": 5, "d": 1}), test=femnist({"a": 1, "b": 2})
    )
    words = (
        "data",
        "convert",
        "leaf",
        "leaf",
        "--out",
        "made.h5",
        "--held-out",
        "0.3",
        "--min-samples",
        "2",
    )
    done = fedmpi_cli(*words)
    assert done.returncode == 0, done.stderr
    assert "2 test, of shape (1, 28, 28)" in done.stdout or "1 test, of shape (1, 28, 28)" in done.stdout
    assert "held out       1 clients" in done.stdout
    assert "left out       1 clients with too few samples: d" in done.stdout
    data = read_dataset(tmp_path / "made.h5")
    assert data.client_names[2] not in [data.client_names[n] for n in set(data.train_clients.tolist())]
    assert h5py.File(tmp_path / "made.h5").attrs["format_version"] == 2

    again = fedmpi_cli(*words)
    assert again.returncode == 2
    assert "exists; overwrite it with --force" in again.stderr
    unknown = fedmpi_cli("data", "convert", "leef", "leaf", "--out", "x.h5")
    assert (unknown.returncode, "did you mean leaf?" in unknown.stderr) == (2, True)


@pytest.mark.parametrize("name", ["roles-fedavg", "roles-amplified"])
def test_roles_take_turns(tmp_path, fedmpi_cli, name):
    """Plays become a file whose roles train the shipped text configs; strangers are evaluated with them."""
    (tmp_path / "plays.txt").write_text("\n\n".join(PLAYS.replace("ADA", f"ADA{n}") for n in range(30)))
    done = fedmpi_cli("data", "convert", "plays", "plays.txt", "--out", "roles.h5", "--held-out", "0.1",
                      "--length", "10", "--min-samples", "2")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith('data.partition = "natural", task.name = "next-character"\n')
    settings = ("data.dataset=roles.h5", "run.num_rounds=3", "run.eval_every=3", "run.eval_clients_every=3",
                "participation.clients_per_round=2", "participation.num_groups=3",
                "algorithm.local_lr=0.05")  # fmt: skip
    if name == "roles-amplified":
        settings += "warmup.num_rounds=1", "warmup.local_lr=0.05"
    words = [word for setting in settings for word in ("--set", setting)]
    done = fedmpi_cli("run", str(ROOT / "configs" / "text" / f"{name}.toml"), "--out", "a.h5", *words)
    assert done.returncode == 0, done.stderr
    run = fedmpi.load_run(tmp_path / "a.h5")
    last = run.clients_eval[run.clients_eval["round"] == 3]
    assert set(last["part"]) == {"train", "test", "held-out"}
    assert np.isfinite(last.perplexity).all()
    characters = read_dataset(tmp_path / "roles.h5").vocabulary
    assert run.eval.test_perplexity.iloc[0] == pytest.approx(len(characters), rel=0.5)
    assert run.eval.test_perplexity.iloc[1] < run.eval.test_perplexity.iloc[0]


SHAKESPEARE = ROOT.parent / "shared" / "data" / "tinyshakespeare.txt.xz"


@pytest.mark.skipif(not SHAKESPEARE.exists(), reason=f"{SHAKESPEARE} is not there: 299 roles of real plays")
def test_real_plays():
    """The roles that have words, in the order of the plays; nothing that they say is lost or doubled."""
    text = lzma.decompress(SHAKESPEARE.read_bytes()).decode()
    options = Options(min_samples=1, test_share=0.0)
    source = CONVERTERS["plays"](SHAKESPEARE, options)
    with_words = [client for client in source.clients if len(client)]
    assert len(with_words) == 299
    assert len(source.vocabulary) == 65
    order = [text.index(f"\n{client.name}:\n") for client in with_words[1:]]
    assert order == sorted(order)
    romeo = next(client for client in with_words if client.name == "ROMEO")
    speeches = re.findall(r"(?:^|\n\n)ROMEO:\n(?!\n)(.*?)(?=\n\n|$)", text, re.DOTALL)
    said = "\n".join(speech.strip("\n") for speech in speeches)
    assert "".join(source.vocabulary[n] for n in romeo.labels[romeo.labels >= 0]) == said[1:]
    assert (romeo.labels[:-1] >= 0).all()
