"""`fedmpi.load_runs`: many runs as one table that shows itself as a few lines and draws curves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmpi.storage.runs import Paths, read_runs

if TYPE_CHECKING:
    import pandas


def load_runs(paths: Paths, table: str = "eval") -> pandas.DataFrame:
    """One row for each run and evaluation, of all runs in a folder or a list of files and folders.

    The columns are `file`, `name`, `seed`, `status`, those of the table, and every config value as
    `section.key`; beside evaluations what the run had cost by then (`local_steps`, `bytes_sent`,
    `energy_j`). What a run does not record is nan. `table` may also be "train", "participation", "clients"
    or "clients_eval" (of runs that have it). Files that cannot be read are left out with a warning, and
    listed in `.attrs["skipped"]`.

    Evaluations show themselves as a line for each run, and draw themselves as `fedmpi plot` does. What is
    selected from them is an ordinary table, as is `.head()`.

    >>> table = load_runs("runs/sweep")                                              # doctest: +SKIP
    >>> table.plot("test_accuracy", x="bytes")                                       # doctest: +SKIP
    >>> table.groupby(["algorithm.amplify_every", "round"]).test_accuracy.mean()     # doctest: +SKIP
    """
    rows = read_runs(paths, table)
    if table != "eval":
        return rows
    from fedmpi.results.run_table import Runs  # here, since pandas takes time to load

    made = Runs(rows)
    made.attrs = rows.attrs
    return made
