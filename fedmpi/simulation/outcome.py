"""What a run reports while it is running, and how it ended.

`Output` takes results (experiments/result_file.py writes them), `Listener` is for people: a progress bar,
or a user's callback. The loop calls the methods of both in the order below; here they do nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedmpi.data.ownership import owner_of
from fedmpi.simulation.stopping import is_callback, reason

if TYPE_CHECKING:
    from fedmpi.simulation.loop import Simulation


class Output:
    """Where results go; on every rank, since each rank writes the tables of its own clients."""

    takes_rows = False  # whether `add` does anything on this rank

    def wants_checkpoint(self, completed: int) -> bool:
        """Whether this rank asks for a checkpoint after `completed` rounds."""
        return False

    def add(self, table: str, **values: Any) -> None:
        """Add rows to a table of the result file, by column name."""

    def after_round(self, simulation: Simulation, *, checkpoint: bool) -> None:
        """Collective. After each round and before the first; `checkpoint`: all ranks agreed on one."""

    def finish(self, simulation: Simulation, outcome: Outcome) -> None:
        """Collective. After the last round of this leg."""


class Listener:
    """Follows the progress of a run; on rank 0."""

    def expects(self, total: int, completed: int = 0) -> None:
        """The run has `total` rounds, of which `completed` are already complete."""

    def evaluated(self, row: dict[str, float]) -> None:
        """An evaluation, by the column names of /eval; nan for a set that was not evaluated."""

    def round_done(self, completed: int) -> None:
        """`completed` rounds are complete; called with 0 before the first."""

    def ended(self, completed: int) -> None:
        """The last round of this leg is over."""


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """A client gave a non-finite update."""

    round: int
    client: int
    rank: int
    local_lr: float

    @property
    def sentence(self) -> str:
        """What happened."""
        who = f"client {self.client} (rank {self.rank})"
        return f"diverged in round {self.round}: {who} gave a non-finite update"

    @property
    def remedy(self) -> str:
        """What is kept, and what to do."""
        return (
            f"results and model of the {self.round} rounds before that are kept. "
            f"Try a local_lr below {self.local_lr:g}"
        )

    def replay(self, path: object) -> str:
        """The command that computes this update again, in one process."""
        return f"fedmpi replay {path} --round {self.round} --client {self.client}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run, or this leg of it, ended; the same on all ranks except for `phases`."""

    status: str  # "done", "diverged" or "stopped"
    completed: int
    stop_code: int = 0
    divergence: Divergence | None = None
    phases: list[dict[str, float]] | None = None  # seconds of each rank by phase; on rank 0

    @property
    def is_callback(self) -> bool:
        """Whether a user's function stopped it."""
        return is_callback(self.stop_code)

    @property
    def stop_reason(self) -> str:
        """Why it stopped, in words."""
        return reason(self.stop_code) if self.stop_code else ""


def divergence(t: int, client: int, num_ranks: int, local_lr: float) -> Divergence:
    """A divergence, with the rank that owns the client."""
    return Divergence(round=t, client=client, rank=int(owner_of(client, num_ranks)), local_lr=local_lr)
