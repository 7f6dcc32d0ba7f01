"""The house keeps its order: imports of fedmpi/ point down the list of layers only, and never in a circle.

All imports are read from the source, also those inside functions. Those under `if TYPE_CHECKING:` count
for the layers, since whoever names a type knows the module; they do not count for circles, since they
never run.
"""

from __future__ import annotations

import ast
import collections
import graphlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# From top to bottom: a module may import its own layer and those to its right.
LAYERS = (
    "cli", "experiments", "results", "simulation", "theory", "methods", "participation", "models", "data",
    "tasks", "storage", "config", "mpi", "errors",
)  # fmt: skip
RANK = {name: rank for rank, name in enumerate(LAYERS)} | {"__main__": 0}
FACADE = "fedmpi"  # fedmpi/__init__.py offers what users call, from any layer
MOST_NAMES = 16


@dataclass(frozen=True)
class Edge:
    """One import."""

    source: str  # the module that imports
    target: str  # the module, or the name of the facade, that is imported
    place: str  # file:line
    is_for_types: bool

    def __str__(self) -> str:
        return f"{self.place} imports {self.target}"

    @property
    def problem(self) -> str:
        """Why this import is not allowed; empty if it is."""
        if self.target == f"{FACADE}.__version__":
            return ""
        if self.target == FACADE:
            return "the facade is for users; take __version__ only"
        source, target = layer(self.source), layer(self.target)
        if target not in RANK:
            return f"{target} is no layer"
        return f"{target} is above {source}" if RANK[target] < RANK[source] else ""


def layer(module: str) -> str:
    """The part of the package that a module belongs to."""
    return module.split(".")[1]


def modules_of(root: Path) -> dict[str, Path]:
    """Every module of the package `fedmpi` in a folder, by name."""
    found = {}
    for path in sorted((root / FACADE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def edges_of(root: Path) -> list[Edge]:
    """Every import of the package by one of its modules, but for those of the facade."""
    modules = modules_of(root)
    found = []
    for name, path in modules.items():
        if name == FACADE:
            continue
        for node, is_for_types in _imports(ast.parse(path.read_text())):
            place = f"{path.relative_to(root)}:{node.lineno}"
            for target in _targets(node, name, path, modules):
                if target.split(".")[0] == FACADE:
                    found.append(Edge(name, target, place, is_for_types))
    return found


def _imports(node: ast.AST, is_for_types: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """Import statements at any depth, and whether a type checker alone runs them."""
    is_guard = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    for child in ast.iter_child_nodes(node):
        for_types = is_for_types or (is_guard and child in node.body)
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, for_types
        else:
            yield from _imports(child, for_types)


def _targets(
    node: ast.Import | ast.ImportFrom, name: str, path: Path, modules: dict[str, Path]
) -> Iterator[str]:
    """The modules that a statement imports: `from package import name` may mean either."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
    for alias in node.names:
        full = f"{base}.{alias.name}"
        # A name of the facade that is no module is left as it is, so that a message can name it.
        yield full if full in modules or base == FACADE else base


def upward(root: Path) -> list[str]:
    """What each import that is not allowed does wrong."""
    return [f"{edge}: {edge.problem}" for edge in edges_of(root) if edge.problem]


def circle(root: Path) -> list[str]:
    """The imports of one circle; empty if there is none."""
    edges = [e for e in edges_of(root) if not e.is_for_types and e.target != FACADE]
    first = {(e.source, e.target): e for e in edges if e.source != e.target}
    graph = collections.defaultdict(set)
    for source, target in first:
        graph[source].add(target)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        names = error.args[1][::-1]  # each is imported by the one before
        return [str(first[pair]) for pair in itertools.pairwise(names)]
    return []


def test_imports_point_down():
    """No module imports a layer above its own."""
    assert len(edges_of(ROOT)) > 300
    found = upward(ROOT)
    assert not found, "\n".join(found)


def test_no_import_cycle():
    """No module imports itself through others, not even inside functions."""
    found = circle(ROOT)
    assert not found, "\n".join(found)


def test_top_of_the_package_is_short():
    """`ls fedmpi` shows the layers, and little else."""
    names = {path.name for path in (ROOT / FACADE).iterdir()} - {"__pycache__", "README.md"}
    assert len(names) <= MOST_NAMES, sorted(names)
    packages = {path.name for path in (ROOT / FACADE).iterdir() if (path / "__init__.py").exists()}
    assert packages <= set(LAYERS)


def test_no_file_name_twice():
    """A file name says which file is meant."""
    paths = collections.defaultdict(list)
    for path in (ROOT / FACADE).rglob("*.py"):
        paths[path.name].append(str(path.relative_to(ROOT)))
    twice = {name: found for name, found in paths.items() if len(found) > 1 and name != "__init__.py"}
    assert twice == {}


# --- The tests above can fail -------------------------------------------------------------------------


def plant(root: Path, **files: str) -> Path:
    """A package with these modules, `__` for a slash."""
    for name, text in files.items():
        path = root / FACADE / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import fedmpi.cli.run", "imports fedmpi.cli.run: cli is above storage"),
        ("from fedmpi.cli import run", "imports fedmpi.cli.run: cli is above storage"),
        ("from fedmpi.cli.run import go", "imports fedmpi.cli.run: cli is above storage"),
        ("from ..cli.run import go", "imports fedmpi.cli.run: cli is above storage"),
        ("from .. import cli", "imports fedmpi.cli: cli is above storage"),
        ("def f():\n    from fedmpi import cli", "imports fedmpi.cli: cli is above storage"),
        ("if TYPE_CHECKING:\n    import fedmpi.cli.run", "imports fedmpi.cli.run: cli is above storage"),
        ("from fedmpi import load_run", "imports fedmpi.load_run: load_run is no layer"),
        ("import fedmpi", "imports fedmpi: the facade is for users; take __version__ only"),
        ("from fedmpi.attic import old", "imports fedmpi.attic: attic is no layer"),
        ("from fedmpi import __version__, mpi\nfrom . import lock\nimport torch", None),
        ("from fedmpi.errors import UserError", None),
    ],
)
def test_an_upward_import_is_named(tmp_path, text, expected):
    """In every form of the statement, with file and line."""
    root = plant(
        tmp_path, cli__run="go = 1", storage__files=text, storage__lock="", mpi__comm="", errors=""
    )
    line = text.count("\n") + 1
    assert upward(root) == ([f"fedmpi/storage/files.py:{line} {expected}"] if expected else [])


def test_a_circle_is_named(tmp_path):
    """Each import of it; types alone make none."""
    modules = {
        "data__a": "from fedmpi.data import b",
        "data__b": "def f():\n    from fedmpi.data.c import g",
        "data__c": "if TYPE_CHECKING:\n    from fedmpi.data.a import A",
    }
    assert circle(plant(tmp_path, **modules)) == []
    found = circle(plant(tmp_path, data__c="import fedmpi.data.a"))
    assert sorted(found) == [
        "fedmpi/data/a.py:1 imports fedmpi.data.b",
        "fedmpi/data/b.py:2 imports fedmpi.data.c",
        "fedmpi/data/c.py:1 imports fedmpi.data.a",
    ]
