"""What a run tells while it goes on, and how it ended.

`Output` takes results (experiments/result_file.py writes them), `Listener` is for people: progress, or a
function of the user's own. The loop calls both in the order in which they stand here; these do nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedmpi.data.ownership import owner_of
from fedmpi.simulation.stopping import is_interrupt, reason

if TYPE_CHECKING:
    from fedmpi.simulation.loop import Simulation


class Output:
    """Where results go; on every rank, since clients' tables are written by the ranks that own them."""

    takes_rows = False  # whether `add` does anything on this rank

    def wants_checkpoint(self, completed: int) -> bool:
        """Whether this rank asks for a checkpoint after so many rounds."""
        return False

    def add(self, table: str, **values: Any) -> None:
        """Rows of a table of the result file, by the names of its columns."""

    def after_round(self, simulation: Simulation, *, checkpoint: bool) -> None:
        """Collective. After each round, and before the first; `checkpoint`: all ranks agreed on one."""

    def finish(self, simulation: Simulation, outcome: Outcome) -> None:
        """Collective. After the last round of this leg."""


class Listener:
    """Who wants to know; on rank 0."""

    def expects(self, total: int, completed: int = 0) -> None:
        """So many rounds there will be, of which some are complete already."""

    def evaluated(self, row: dict[str, float]) -> None:
        """An evaluation, by the names of the columns of /eval; nan where a set was left out."""

    def round_done(self, completed: int) -> None:
        """So many rounds are complete; 0 before the first."""

    def ended(self, completed: int) -> None:
        """No round follows."""


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
            f"results and model of the {self.round} rounds before are kept. "
            f"Try a local_lr below {self.local_lr:g}"
        )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run, or this leg of it, ended; the same on all ranks but for `phases`."""

    status: str  # "done", "diverged" or "stopped"
    completed: int
    stop_code: int = 0
    divergence: Divergence | None = None
    phases: list[dict[str, float]] | None = None  # seconds of each rank by phase; on rank 0

    @property
    def is_interrupt(self) -> bool:
        """Whether Ctrl-C stopped it."""
        return is_interrupt(self.stop_code)

    @property
    def stop_reason(self) -> str:
        """Why it stopped, in words."""
        return reason(self.stop_code) if self.stop_code else ""


def divergence(t: int, client: int, num_ranks: int, local_lr: float) -> Divergence:
    """The client, and the rank that owns it."""
    return Divergence(round=t, client=client, rank=int(owner_of(client, num_ranks)), local_lr=local_lr)
