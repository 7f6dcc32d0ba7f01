"""Kills at random moments and resumes on 1 to 4 ranks; then a long run, whose memory is watched.

    nice -n 10 python -m tests.soak --minutes 60

Ends with status 1 if a run does not go on, hangs, has other bits than one without kills, or if memory, open
files or threads of a rank grow. Leaves its folder only then.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import fedmpi
from fedmpi.results.compare import first_difference
from fedmpi.storage.reader import peek
from tests.support.commands import with_tests_on_the_path
from tests.support.configs import SMALL
from tests.support.jobs import processes_in

# Lending: three of seven clients, wherever they are owned; few evaluations, many checkpoints.
CONFIG = SMALL.replace("eval_every = 3", "eval_every = 500\ncheckpoint_every = 20").replace(
    '"uniform"', '"permutation"'
)
# Many participants: what a round writes makes a segment (storage/segments.py) of 30,000 rounds.
LONG = (
    CONFIG.replace("num_clients = 7", "num_clients = 100")
    .replace("train_samples = 420", "train_samples = 1000")
    .replace("clients_per_round = 3", "clients_per_round = 40")
    .replace("checkpoint_every = 20", "checkpoint_every = 200")
)
# By how much a rank may hold more in the second half of a long run than in the first.
ROOM = {"memory MB": 8, "files": 2, "threads": 0}
STALL = ("--set", "run.stall_minutes=1")
LONGEST_LEG = 12.0  # seconds until a kill
DONE, STOPPED = 0, 75


def main() -> int:
    """Both parts, and the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="of kills (default: 60)")
    parser.add_argument("--rounds", type=int, default=100_000, help="without kills (default: 100,000)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of kills")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fedmpi-soak-")).resolve()
    (folder / "c.toml").write_text(CONFIG)
    print(f"seed {args.seed}, in {folder}", flush=True)
    kills(folder, args.minutes, random.Random(args.seed))
    long_run(folder, args.rounds)
    shutil.rmtree(folder)
    return 0


class Leg:
    """One start or resume, until it ends or is killed."""

    def __init__(self, folder: Path, ranks: int, *words: str) -> None:
        self.folder = folder
        self.log = open(folder / "log", "ab")  # noqa: SIM115, closed in `wait`
        self.job = subprocess.Popen(
            ["mpirun", "-n", str(ranks), sys.executable, "-m", "fedmpi", *words], cwd=folder,
            env=with_tests_on_the_path({}), stdout=self.log, stderr=self.log, start_new_session=True,
        )  # fmt: skip

    def wait(self, seconds: float) -> int | None:
        """The status if it ends in time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.job.wait(seconds)
            self.log.close()
        return self.job.returncode

    def ranks(self) -> list[int]:
        """Process ids of its ranks."""
        return sorted(pid for pid, is_rank in processes_in(self.folder).items() if is_rank)

    def strike(self, kind: str, chance: random.Random) -> None:
        """SIGKILL to a rank, to the launcher or to all; SIGSTOP to a rank; or SIGTERM to the launcher."""
        ranks = self.ranks()
        one = [chance.choice(ranks)] if ranks else []
        targets = {"rank": one, "stopped": one, "all": [self.job.pid, *ranks]}.get(kind, [self.job.pid])
        number = {"asked": signal.SIGTERM, "stopped": signal.SIGSTOP}.get(kind, signal.SIGKILL)
        for pid in targets:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def all_gone(self, seconds: float) -> float:
        """Seconds until no process of the leg is left; it fails if that takes too long."""
        begin = time.monotonic()
        self.wait(seconds)
        while left := processes_in(self.folder):
            if time.monotonic() - begin > seconds:
                sys.exit(f"still there {seconds:g} s after the kill: {left}; see {self.folder}")
            time.sleep(0.05)
        return time.monotonic() - begin


def kills(folder: Path, minutes: float, chance: random.Random) -> None:
    """A run that is struck every few seconds; at the end the bits of one that was not."""
    end, slowest = time.monotonic() + 60 * minutes, 0.0
    counts = dict.fromkeys(("rank", "launcher", "all", "asked", "stopped"), 0)
    words = ("run", "c.toml", "--out", "r.h5", "--set", "run.num_rounds=100000000", *STALL)
    on_ranks: list[int] = []
    while time.monotonic() < end:
        on_ranks.append(chance.randint(1, 4))
        leg = Leg(folder, on_ranks[-1], *words)
        if leg.wait(3.0 + chance.random() * LONGEST_LEG) not in (None, STOPPED):
            sys.exit(f"a leg ended by itself; see {folder / 'log'}")
        # A rank that is stopped ends its job after a minute, or ten if the leg was loading data: seldom.
        kind = chance.choices(list(counts), weights=(4, 4, 2, 2, 0.4 if on_ranks[-1] > 1 else 0))[0]
        leg.strike(kind, chance)
        counts[kind] += 1
        slowest = max(slowest, 0.0 if kind == "stopped" else leg.all_gone(30))
        leg.all_gone(700)
        if (folder / "r.h5").exists():
            words = ("resume", "r.h5", "--wait", "30")

    # To an end; and the same without kills, on one rank.
    rounds = peek(folder / "r.h5")["rounds"] + 200
    last = ("--set", f"run.num_rounds={rounds}")
    if Leg(folder, 2, "resume", "r.h5", *last).wait(3600) != DONE:
        sys.exit(f"the last leg failed; see {folder / 'log'}")
    if Leg(folder, 1, "run", "c.toml", "--out", "whole.h5", *last).wait(3600) != DONE:
        sys.exit(f"the run without kills failed; see {folder / 'log'}")
    difference = first_difference(fedmpi.load_run(folder / "r.h5"), fedmpi.load_run(folder / "whole.h5"))
    if difference:
        sys.exit(f"other bits than without kills: {difference.text}; see {folder}")
    told = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    ranks = ", ".join(map(str, sorted(set(on_ranks))))
    print(
        f"{sum(counts.values())} legs struck down ({told}), on {ranks} ranks; {rounds:,} rounds "
        f"with the bits of a run without kills; all processes were gone "
        f"{slowest:.1f} s after a kill at the latest",
        flush=True,
    )


def long_run(folder: Path, rounds: int) -> None:
    """Two ranks, so many rounds: what each holds at most in the first half of them and in the second."""
    (folder / "long.toml").write_text(LONG)
    words = ("run", "long.toml", "--out", "long.h5", "--set", f"run.num_rounds={rounds}", *STALL)
    leg, halves, segments = Leg(folder, 2, *words), ([], []), 0
    while leg.wait(1.0) is None:
        found = peek(folder / "long.h5") if (folder / "long.h5").exists() else None
        done = found["rounds"] if found else 0
        seen = [holdings(pid) for pid in leg.ranks()]
        if 0 < done < 0.98 * rounds and len(seen) == 2 and all(seen):  # then the files are joined
            halves[done > rounds / 2].append(seen)
        segments = max(segments, len(list(folder.glob("long.h5.rows-*"))))
    if leg.job.returncode != DONE or not all(halves):
        sys.exit(f"the long run failed; see {folder / 'log'}")
    size = (folder / "long.h5").stat().st_size / 2**20
    print(
        f"{rounds:,} rounds on 2 ranks; file {size:.1f} MB, put away in {segments} segments; at first, the "
        f"most in the first half, in the second half, at the end:"
    )
    for rank in range(2):
        told, grown = [], []
        for name in halves[0][0][rank]:
            first, second = ([seen[rank][name] for seen in half] for half in halves)
            told.append(f"{name} {first[0]:g}, {max(first):g}, {max(second):g}, {second[-1]:g}")
            if max(second) > max(first) + ROOM[name]:
                grown.append(name)
        print(f"  rank {rank}: " + "; ".join(told), flush=True)
        if grown:
            sys.exit(f"rank {rank} holds more and more: {', '.join(grown)}")


def holdings(pid: int) -> dict[str, float]:
    """Memory, open files and threads of a process; empty if it has ended."""
    try:
        status = dict(
            line.split(":", 1)
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if ":" in line
        )
        files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        memory = int(status["VmRSS"].split()[0]) / 1024
        return {"memory MB": round(memory, 1), "files": files, "threads": int(status["Threads"])}
    except (OSError, KeyError):
        return {}


if __name__ == "__main__":
    sys.exit(main())
