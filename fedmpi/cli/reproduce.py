"""`fedmpi reproduce`: a published experiment from scratch, ending with its figure and its table."""

from __future__ import annotations

import argparse
from fnmatch import fnmatchcase
from pathlib import Path

from fedmpi import mpi
from fedmpi.cli.sweep import do_sweep, look_or_write
from fedmpi.errors import EXIT_DONE, EXIT_STOPPED, UserError, did_you_mean
from fedmpi.experiments.reproduce import RECIPES, Recipe
from fedmpi.experiments.reproduce.request import Request, settle_on_root
from fedmpi.experiments.sweep.best import best_groups, best_lines, collect
from fedmpi.experiments.sweep.packing import pack_size
from fedmpi.experiments.sweep.points import Point
from fedmpi.experiments.sweep.store import Store
from fedmpi.mpi.watch.beginning import beginning
from fedmpi.simulation.stopping import StopRequest
from fedmpi.storage.output import write_output
from fedmpi.storage.reader import load_run
from fedmpi.storage.runs import read_runs


def reproduce(args: argparse.Namespace) -> int:
    """Collective. All remaining runs, then figure and table; the exit status of the sweep."""
    if args.name is None:
        if mpi.launched_rank() == 0:
            print("\n".join(f"{name:22} {recipe.claim}" for name, recipe in RECIPES.items()))
        return EXIT_DONE
    if args.name not in RECIPES:
        raise UserError(f"reproduce {args.name}: unknown experiment; {did_you_mean(args.name, RECIPES)}")
    folder = Path(args.out or f"reproduced/{args.name}{'-quick' * args.quick}")
    wanted = Request(quick=args.quick, seeds=args.seeds, only=args.only, rounds=args.rounds)
    points = wanted.runs(args.name)  # refuses what the recipe does not have, before anything is written
    if args.list or args.write_configs:
        if mpi.launched_rank() == 0:
            look_or_write(points, f"fedmpi reproduce {args.name}", folder / args.name, args.write_configs)
        return EXIT_DONE
    stop, pack = StopRequest().listen(), pack_size(args.pack)
    with mpi.session() as world, beginning(world):
        request = world.on_root(lambda: settle_on_root(wanted, args.name, folder, resume=args.resume))
        if world.is_root:
            _introduce(args.name, request)
        points = world.on_root(lambda: request.runs(args.name))
        alone = world.split(world.rank)
        status = do_sweep(world, alone, points, points, folder / args.name, args.name, stop, pack)
        if status != EXIT_STOPPED:
            world.try_on_root(lambda: _show(RECIPES[args.name], points, Store(folder / args.name), folder))
    return status


def _introduce(name: str, request: Request) -> None:
    """Rank 0: what is to be shown, and what a quick version is worth."""
    recipe = RECIPES[name]
    print(f"fedmpi reproduce {name}: {recipe.claim}", flush=True)
    if request.quick and recipe.has_quick:
        print("quick: 6,000 images of FashionMNIST, fewer rounds; not the real results", flush=True)


def _show(recipe: Recipe, points: list[Point], store: Store, folder: Path) -> None:
    """Rank 0: the table of best settings on the screen; the figure and all curves beside the runs."""
    from fedmpi.cli.plot import plot

    last = recipe.last_of(points[0].config)
    groups = collect(store, recipe.metric, last, whole_cycles=recipe.whole_cycles)
    print()
    print("\n".join(best_lines(groups, recipe.metric, everything=not recipe.only_best)))
    files = [path for group in groups for path in group.paths if path.exists()]
    if files:
        _write_curves(files, folder / "curves.csv")
    shown = best_groups(groups) if recipe.only_best else groups
    shown = [g for g in shown if any(fnmatchcase(g.method, case) for case in recipe.shown)] or shown
    paths = [path for group in shown if group.values for path in group.paths if path.exists()]
    if paths:
        names, figure = [str(path) for path in paths], str(folder / "figure.png")
        plot(names, figure, recipe.preset or None, trajectory=not recipe.preset)


def _write_curves(paths: list[Path], target: Path) -> None:
    """Every evaluation of every run, with the settings that differ: small enough to publish."""
    table = read_runs(paths)
    metrics = [name for name in load_run(paths[0]).metrics if name in table]
    differ = [key for key in table if "." in key and table[key].astype(str).nunique() > 1]
    kept = ["name", "seed", *(k for k in differ if not k.startswith("run.")), "round", *metrics]
    data = table[kept].to_csv(index=False, float_format="%.5g")
    write_output(target, data.encode())
    print(target)
