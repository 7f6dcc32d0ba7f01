"""What a reproduction was asked for: which of its seeds and settings, and for how many rounds.

It is kept beside the runs. Invariant: a folder shows all that it was ever asked for; another request is
only added on purpose, with `--resume`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from fedmpi.errors import OutputError, UserError
from fedmpi.experiments.reproduce import RECIPES, path_of
from fedmpi.experiments.sweep.choosing import only
from fedmpi.experiments.sweep.points import Point, load_sweep
from fedmpi.experiments.sweep.store import Store
from fedmpi.storage.files import write_contended

_FILE = "request.json"


@dataclass(frozen=True)
class Request:
    """What a command says; None: all that the recipe has."""

    quick: bool = False
    seeds: list[int] | None = None
    only: list[str] | None = None  # cases or runs by name, or patterns of such
    rounds: int | None = None

    def runs(self, name: str) -> list[Point]:
        """The runs of a recipe, whole if it has no quick version; an unknown name in `only` is refused."""
        is_quick = self.quick and RECIPES[name].has_quick
        common = {"run.num_rounds": self.rounds} if self.rounds else None
        return only(load_sweep(path_of(name), quick=is_quick, seeds=self.seeds, common=common), self.only)

    def beside(self, stored: Request, recipe: str) -> Request:
        """This one and what a folder was asked for before; what is not said here stays as it was."""
        before = stored.seeds
        if before is None and self.seeds is not None:
            points = Request(quick=stored.quick).runs(recipe)
            before = list(dict.fromkeys(point.seed for point in points))
        return Request(
            quick=self.quick or stored.quick,
            seeds=_joined(before, self.seeds),
            only=stored.only and _joined(stored.only, self.only),
            rounds=self.rounds or stored.rounds,
        )


def _joined(stored: list | None, wanted: list | None) -> list | None:
    return stored if wanted is None else list(dict.fromkeys([*stored, *wanted]))


def settle_on_root(wanted: Request, recipe: str, folder: Path, *, resume: bool) -> Request:
    """Rank 0: what is to be done in a folder, and written there: with `resume` also what it has already.

    Without it a folder that was asked for other things is refused.
    """
    stored = _read(folder)
    before = stored or _of_before(recipe, folder, quick=wanted.quick)
    request = wanted.beside(before, recipe) if resume and before else wanted
    if stored and not resume and wanted != stored:
        differ = [key for key, value in asdict(wanted).items() if value != asdict(stored)[key]]
        raise UserError(
            f"{folder}: was begun with {_said(stored, differ)}, this command says {_said(wanted, differ)}; "
            "add --resume to have both there, or choose another folder with --out"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError.from_os(error, folder) from None
    write_contended(folder / _FILE, json.dumps(asdict(request)).encode())
    return request


def _read(folder: Path) -> Request | None:
    try:
        return Request(**json.loads((folder / _FILE).read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{folder / _FILE}: damaged ({error}); remove it to go on with the runs") from None


def _of_before(recipe: str, folder: Path, *, quick: bool) -> Request | None:
    """Of a folder from an earlier version of fedmpi, which wrote no request: what its sweep planned."""
    store = Store(folder / recipe)
    seeds = [run["seed"] for run in store.plan()] if store.notes.is_dir() else []
    return Request(quick=quick, seeds=list(dict.fromkeys(seeds))) if seeds else None


def _said(request: Request, keys: list[str]) -> str:
    values = {key: getattr(request, key) for key in keys}
    words = {
        key: ",".join(map(str, value)) if isinstance(value, list) else str(value).lower()
        for key, value in values.items()
    }
    return " ".join(f"--{key} {'(all)' if values[key] is None else word}" for key, word in words.items())
