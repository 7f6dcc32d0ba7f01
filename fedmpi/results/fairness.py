"""How a model serves clients: the distribution of loss and metrics over them, its worst end, its evenness.

Every client counts the same here, however many samples it has. Invariant: "worst" is what the task says,
the largest loss or the smallest accuracy; and no figure depends on the order of clients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from fedmpi.errors import UserError
from fedmpi.results.naming import is_lower_better
from fedmpi.storage.columns import PARTS, Column
from fedmpi.storage.reader import Run

if TYPE_CHECKING:
    import pandas

WORST_SHARE = 0.1


def fairness(run: Run) -> pandas.DataFrame:
    """One row for each evaluation of clients, set of samples and metric.

    The columns are `round`, `part`, `metric`, `clients` (how many), and over clients `mean`, `std`,
    `median`, `worst_decile` (mean of the worst tenth of the clients), `worst`, `best` and `jain` (Jain's
    index of evenness, from 1/clients up to 1; nan where less is better, as of a loss).

    >>> table = fedmpi.fairness(fedmpi.load_run("a.h5"))           # doctest: +SKIP
    >>> table[table.metric == "accuracy"].set_index("round").worst_decile.plot()   # doctest: +SKIP
    """
    import pandas

    table = clients_of(run)
    rows = []
    for (completed, part), own in table.groupby(["round", "part"], observed=True):
        for name, metric in metrics_of(run).items():
            values = own[name].dropna().to_numpy()
            if len(values):
                head = {"round": completed, "part": part, "metric": name, "clients": len(values)}
                rows.append(head | spread(values, lower_is_better=is_lower_better(metric)))
    return pandas.DataFrame(rows)


def metrics_of(run: Run) -> dict[str, Column]:
    """What is recorded of each client, the loss first."""
    found = {name.removeprefix("train_"): column for name, column in run.metrics.items()}
    return {name: column for name, column in found.items() if name in clients_of(run)}


def clients_of(run: Run) -> pandas.DataFrame:
    """/clients_eval; a run without it is a UserError."""
    if run.clients_eval is None:
        raise UserError(
            f"run file {run.path}: holds no evaluation of clients; run it with run.eval_clients_every, "
            "such as run.eval_clients_every = run.eval_every"
        )
    return run.clients_eval


def spread(values: np.ndarray, *, lower_is_better: bool) -> dict[str, float]:
    """Figures of one metric over clients.

    >>> spread(np.array([0.5, 1.0, 0.75, 0.75]), lower_is_better=False)["worst_decile"]
    0.5
    """
    ordered = np.sort(values)[::-1] if lower_is_better else np.sort(values)
    return {
        "mean": float(ordered.mean()),
        "std": float(ordered.std()),
        "median": float(np.median(ordered)),
        "worst_decile": float(ordered[: math.ceil(WORST_SHARE * len(ordered))].mean()),
        "worst": float(ordered[0]),
        "best": float(ordered[-1]),
        "jain": math.nan if lower_is_better or ordered[0] < 0 else jain(ordered),
    }


def jain(values: np.ndarray) -> float:
    """(sum v)^2 / (n sum v^2): 1 if all are alike, 1/n if one has everything; nan if nobody has anything.

    >>> jain(np.ones(5)), jain(np.array([1.0, 0, 0, 0]))
    (1.0, 0.25)
    """
    squares = float((values**2).sum())
    return float(values.sum()) ** 2 / (len(values) * squares) if squares else math.nan


def parts_in(run: Run) -> Iterator[str]:
    """The sets of samples that clients were evaluated on."""
    present = set(clients_of(run)["part"].unique())
    return (part for part in PARTS if part in present)


def last_values(run: Run, part: str, metric: str) -> np.ndarray:
    """Of each client at the last evaluation, from the one that is served worst to the best."""
    table = clients_of(run)
    rows = table[(table["part"] == part) & (table["round"] == table["round"].max())]
    values = np.sort(rows[metric].dropna().to_numpy())
    return values[::-1] if is_lower_better(metrics_of(run)[metric]) else values
