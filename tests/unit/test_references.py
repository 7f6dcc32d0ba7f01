"""The reference pages say what the code has: keys, commands, files, Python names."""

from __future__ import annotations

import fnmatch
import json

import h5py
import pytest

import fedmpi
from fedmpi.cli.commands_page import commands, commands_page
from fedmpi.cli.python_page import FUNCTIONS, python_page
from fedmpi.cli.schema import PAGES, reference_page
from fedmpi.storage import format_page as described
from fedmpi.storage.columns import OPTIONAL_TABLES, TABLES
from tests.support.configs import ROOT, SMALL


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_current(name):
    """Each page in the repository is what `fedmpi schema --page` writes."""
    command = f"fedmpi schema --page {name} --out {PAGES[name]}"
    assert (ROOT / PAGES[name]).read_text() == reference_page(name), f"run: {command}"


def test_every_command_with_every_option():
    """All of them, as `--help` has them, and each with a word on what it is."""
    page = commands_page()
    assert {"run", "sweep best", "data trace", "slurm", "help", "new"} <= set(commands())
    for name, parser in commands().items():
        section = page.partition(f"\n## fedmpi {name}\n")[2].partition("\n## ")[0]
        assert len(section.splitlines()[1]) > 10
        for action in parser._actions:
            if action.dest != "help" and action.option_strings:
                assert f"| `{action.option_strings[-1]}" in section


def test_every_public_python_name():
    """`fedmpi.__all__` and the page are about the same names."""
    page = python_page()
    functions = {function.__name__ for function in FUNCTIONS}
    assert functions | {"Run", "is_root", "__version__"} == set(fedmpi.__all__)
    assert all(f"\n### fedmpi.{name}\n" in page for name in functions)
    assert all(f"| `{name}` |" in page for name in fedmpi.Run.__dataclass_fields__)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A run with everything that a file may hold, and own code; its checkpoint, and the part of a rank."""
    from tests.support.commands import in_process

    folder = tmp_path_factory.mktemp("format")
    (folder / "c.toml").write_text(SMALL)
    (folder / "own.py").write_text("def who(t, num_clients):\n    return range(num_clients)\n")
    settings = (
        "run.record_params_every=3", "run.record_theory_every=3", "run.eval_at_amplification=true",
        "run.eval_clients_every=3",
        "algorithm.name=amplified-scaffold", "algorithm.amplification=2", "algorithm.amplify_every=3",
        "participation.availability=own:who", "participation.selection=permutation",
        "participation.dropout=0.5",
    )  # fmt: skip
    words = [word for setting in settings for word in ("--set", setting)]
    zone = folder / "intel-rapl:0"  # a counter of energy
    zone.mkdir()
    for name, text in {"name": "package-0", "energy_uj": "1", "max_energy_range_uj": "9"}.items():
        (zone / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedmpi.simulation.energy.POWERCAP", folder)
        done = in_process(folder, "run", "c.toml", "--out", "a.h5", *words)
    assert done.returncode == 0, done.stderr
    return folder / "a.h5", folder / "a.h5.checkpoint-6", folder / "a.h5.checkpoint-6.part-0"


def _datasets(file: h5py.File) -> set[str]:
    names = []
    file.visititems(lambda name, thing: names.append(name) if isinstance(thing, h5py.Dataset) else None)
    return set(names)


def test_the_result_file_is_described_whole(files):
    """Every attribute and dataset of a real file stands on the page, and all that may be there is."""
    with h5py.File(files[0]) as file:
        tables = {
            f"{name}/{c.name}" for name, columns in (TABLES | OPTIONAL_TABLES).items() for c in columns
        }
        assert _datasets(file) == tables | set(described.OTHER_DATASETS)
        elsewhere = {"recorded", "segments"}  # on a GPU, and while a long run goes on
        assert set(file.attrs) == set(described.RUN_ATTRIBUTES) - elsewhere
        assert set(file["model"].attrs) == set(described.MODEL_ATTRIBUTES)
        netcdf = {"CLASS", "NAME", "REFERENCE_LIST", "DIMENSION_LABELS", "DIMENSION_LIST"}
        assert set(file["eval/test_loss"].attrs) - netcdf == set(described.COLUMN_ATTRIBUTES)
        for name, (kind, *_) in described.OTHER_DATASETS.items():
            assert file[name].dtype == kind


def test_the_checkpoint_is_described_whole(files):
    """The same for a checkpoint and its part."""
    with h5py.File(files[1]) as file:
        assert set(file.attrs) == set(described.CHECKPOINT_ATTRIBUTES)
        assert set(json.loads(file.attrs["header"])) == set(described.HEADER)
        for name in _datasets(file):
            assert any(fnmatch.fnmatch(name, pattern) for pattern in described.CHECKPOINT_DATASETS), name
    with h5py.File(files[2]) as file:
        assert set(file.attrs) == set(described.PART_ATTRIBUTES)
        assert "clients" in _datasets(file)
