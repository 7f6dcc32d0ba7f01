"""How a model serves clients: the distribution of loss and accuracy over them, its worst end, its evenness.

Every client counts the same here, however many samples it has. Invariant: "worst" is the largest loss, or
the smallest of any other metric; and no figure depends on the order of clients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from fedmpi.errors import UserError
from fedmpi.storage.columns import OPTIONAL_TABLES, PARTS
from fedmpi.storage.reader import Run

if TYPE_CHECKING:
    import pandas

WORST_SHARE = 0.1
_KEYS = ("round", "client", "part", "samples")
METRICS = tuple(c.name for c in OPTIONAL_TABLES["clients_eval"] if c.name not in _KEYS)


def fairness(run: Run) -> pandas.DataFrame:
    """One row for each evaluation of clients, set of samples and metric.

    The columns are `round`, `part`, `metric`, `clients` (how many), and over clients `mean`, `std`,
    `median`, `worst_decile` (mean of the worst tenth of the clients), `worst`, `best` and `jain` (Jain's
    index of evenness, from 1/clients up to 1; of losses nan).

    >>> table = fedmpi.fairness(fedmpi.load_run("a.h5"))           # doctest: +SKIP
    >>> table[table.metric == "accuracy"].set_index("round").worst_decile.plot()   # doctest: +SKIP
    """
    import pandas

    table = clients_of(run)
    rows = []
    for (completed, part), own in table.groupby(["round", "part"], observed=True):
        for metric in METRICS:
            values = own[metric].dropna().to_numpy()
            if len(values):
                head = {"round": completed, "part": part, "metric": metric, "clients": len(values)}
                rows.append(head | spread(values, metric))
    return pandas.DataFrame(rows)


def clients_of(run: Run) -> pandas.DataFrame:
    """/clients_eval; a run without it is a UserError."""
    if run.clients_eval is None:
        raise UserError(
            f"run file {run.path}: holds no evaluation of clients; run it with run.eval_clients_every, "
            "such as run.eval_clients_every = run.eval_every"
        )
    return run.clients_eval


def spread(values: np.ndarray, metric: str) -> dict[str, float]:
    """Figures of one metric over clients.

    >>> spread(np.array([0.5, 1.0, 0.75, 0.75]), "accuracy")["worst_decile"]
    0.5
    """
    ordered = worst_first(values, metric)
    return {
        "mean": float(ordered.mean()),
        "std": float(ordered.std()),
        "median": float(np.median(ordered)),
        "worst_decile": float(ordered[: math.ceil(WORST_SHARE * len(ordered))].mean()),
        "worst": float(ordered[0]),
        "best": float(ordered[-1]),
        "jain": math.nan if is_loss(metric) else jain(ordered),
    }


def worst_first(values: np.ndarray, metric: str) -> np.ndarray:
    """Sorted, from the client that is served worst to the best."""
    return np.sort(values)[::-1] if is_loss(metric) else np.sort(values)


def is_loss(metric: str) -> bool:
    """Whether less is better."""
    return metric.endswith("loss")


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
    """Of each client at the last evaluation, worst first."""
    table = clients_of(run)
    rows = table[(table["part"] == part) & (table["round"] == table["round"].max())]
    return worst_first(rows[metric].dropna().to_numpy(), metric)
