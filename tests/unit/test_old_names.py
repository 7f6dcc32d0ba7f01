"""Names of version 0.1: those that were documented work, all others say where their contents are now."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from fedmpi.errors.moved import MOVED

ROOT = Path(__file__).resolve().parents[2]

OLD_MODULES = (ROOT / "tests" / "data" / "version-0.1" / "modules.txt").read_text().split()
KEPT = [
    "fedmpi.plots",
    *(f"fedmpi.plots.{m}" for m in ("curves", "presets", "regularized", "style", "trajectory")),
]


def exists(module: str) -> bool:
    """Whether there is such a file, by its path alone: nothing is imported."""
    path = ROOT / module.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def test_all_modules_of_version_01_are_listed():
    """The list is that of the release, not of some folder."""
    assert len(OLD_MODULES) == 133
    assert {"fedmpi", "fedmpi.rng", "fedmpi.plots", "fedmpi.theory.chance"} <= set(OLD_MODULES)


def new_places(name: str) -> list[str]:
    """Where the table sends a reader who looks for an old module: its own line, or that of its package."""
    if name in MOVED:
        return MOVED[name].split(" and ")
    package, _, module = name.rpartition(".")
    return [f"{place}.{module}" for place in new_places(package)] if package else []


@pytest.mark.parametrize("name", [n for n in OLD_MODULES if not exists(n) and n not in KEPT])
def test_an_old_module_names_its_new_place(name):
    """A module that is gone gives an ImportError, and the place that it names for the module exists."""
    with pytest.raises(ImportError, match=" moved to ") as caught:
        importlib.import_module(name)
    assert name.startswith(caught.value.name)
    assert new_places(name)
    assert [place for place in new_places(name) if not exists(place)] == []


def test_the_table_has_old_names_only():
    """Each was a name of version 0.1 and is none now: the table would hide a module of that name."""
    assert [old for old in MOVED if old not in OLD_MODULES or exists(old)] == []


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("import fedmpi.rng", "fedmpi.rng moved to fedmpi.data.rng in version 0.2"),
        ("from fedmpi import rng", "fedmpi.rng moved to fedmpi.data.rng in version 0.2"),
        ("from fedmpi.rng import stream", "fedmpi.rng moved to fedmpi.data.rng in version 0.2"),
        (
            "from fedmpi.sweep.results import Store",
            "fedmpi.sweep moved to fedmpi.experiments.sweep in version 0.2 "
            "(fedmpi.sweep.results to fedmpi.experiments.sweep.store, "
            "fedmpi.sweep.screen to fedmpi.cli.screen)",
        ),
        (
            "import fedmpi.plots.advice",
            "fedmpi.plots.advice moved to fedmpi.results.plots.advice_figure in version 0.2",
        ),
    ],
)
def test_the_message(statement, message):
    """In every form of the statement."""
    with pytest.raises(ImportError) as caught:
        exec(statement)
    assert str(caught.value) == message


def test_a_name_that_never_was_is_simply_not_found():
    """Only names of version 0.1 are answered."""
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'fedmpi\.rngs'"):
        importlib.import_module("fedmpi.rngs")


@pytest.mark.parametrize("old", KEPT)
def test_plots_is_the_same_module_under_two_names(old):
    """`fedmpi.plots` and its modules are those of fedmpi.results.plots, which keep their own names."""
    new = old.replace("fedmpi.plots", "fedmpi.results.plots")
    module = importlib.import_module(old)
    assert module is importlib.import_module(new)
    assert module is sys.modules[old] is sys.modules[new]
    assert module.__name__ == module.__spec__.name == new


def test_plots_in_every_form_of_the_statement():
    """As scripts and notebooks of version 0.1 have it."""
    names = {}
    exec(
        "import fedmpi.plots as a; from fedmpi import plots as b; from fedmpi.plots import draw_curves",
        names,
    )
    assert names["a"] is names["b"]
    assert names["draw_curves"] is names["a"].draw_curves


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("fedmpi", ["Run", "load_run", "load_runs", "__version__"]),
        ("fedmpi.methods", ["Method"]),
        ("fedmpi.data.prepared", ["Dataset", "write_dataset"]),
        (
            "fedmpi.plots",
            [
                "draw_appendix", "draw_comparison", "draw_curves", "draw_participation", "draw_regularized",
                "draw_timing", "evenness", "plot",
            ],
        ),
        ("fedmpi.theory.advice", ["known_of_quadratic"]),
    ],
)  # fmt: skip
def test_documented_names_work(module, names):
    """What README.md, the notebooks and the published surface name."""
    found = importlib.import_module(module)
    assert [name for name in names if not hasattr(found, name)] == []


def test_all_names_of_the_theory_are_there():
    """`fedmpi.theory` offers what it lists."""
    import fedmpi.theory

    assert [name for name in fedmpi.theory.__all__ if not hasattr(fedmpi.theory, name)] == []


def test_importing_the_package_starts_nothing():
    """`import fedmpi` and `fedmpi.plots` load neither torch nor MPI nor matplotlib; no thread runs."""
    code = (
        "import sys, threading, fedmpi, fedmpi.plots\n"
        "heavy = {'torch', 'mpi4py', 'matplotlib'} & set(sys.modules)\n"
        "print(sorted(heavy), threading.active_count(), len([f for f in sys.meta_path "
        "if getattr(f, '__name__', '') == 'OldNames']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "[] 1 1\n", done.stderr
