"""What each rank reports to all others once a round: a few numbers at the head of the first collective.

The collective takes the maximum of each number over the ranks, so the combined report holds the slowest
rank's seconds and any rank's request. Two slots with x and -x show whether all ranks have the same x.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# The slots of a report, in the order in which `pack` and `unpack` have them.
SLOTS = ("plan", "minus_plan", "count", "minus_count", "seconds", "stop", "wants_checkpoint", "failed")


@dataclass(kw_only=True, slots=True)
class RankReport:
    """One rank's report; or, after the reduction, the combined report of all ranks."""

    stop: int = 0  # 0, or the reason to stop after this round
    wants_checkpoint: bool = False  # after this round
    failed: bool = False  # whether training a client raised an exception
    seconds: float = 0.0  # of local training

    def pack(self, plan: int, count: int) -> np.ndarray:
        """The slots as numbers; `plan` is a checksum of participants and weights, `count` their number."""
        agreed = plan, -plan, count, -count
        own = self.seconds, self.stop, self.wants_checkpoint, self.failed
        return np.array((*agreed, *own), dtype=np.float64)

    @classmethod
    def unpack(cls, largest: np.ndarray) -> tuple[RankReport, bool]:
        """The combined report of all ranks, and whether they agree on who takes part.

        >>> packed = RankReport(stop=2, seconds=1.5).pack(plan=77, count=3)
        >>> RankReport.unpack(packed)
        (RankReport(stop=2, wants_checkpoint=False, failed=False, seconds=1.5), True)
        """
        plan, minus_plan, count, minus_count, seconds, stop, wants_checkpoint, failed = largest.tolist()
        report = cls(
            stop=int(stop), wants_checkpoint=bool(wants_checkpoint), failed=bool(failed), seconds=seconds
        )
        return report, plan == -minus_plan and count == -minus_count
