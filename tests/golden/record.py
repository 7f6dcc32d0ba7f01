"""Golden texts: made from a run, and compared with what the repository holds.

What is the same on every machine is compared exactly: random words, partition, minibatch order,
participation, and the model of quadratic problems, whose arithmetic is elementwise. Kernels of other CPUs
may round differently, so curves and numbers of other models have a tolerance; the digest of such a model is
compared where CPU and libraries are those that the files were made with (`machine.txt`).
"""

from __future__ import annotations

import hashlib
import math
import platform
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedmpi.config import Config
from fedmpi.data import rng
from tests.golden.cases import Case
from tests.support.simulations import run_to_file, shard_of

HERE = Path(__file__).parent
TOLERANCE = {"float32": 2e-4, "float64": 1e-9}  # relative, of curves and parameters
_MACHINE = "machine.txt"

ADDRESSES = [
    (1, "partition", 0, 0), (1, "minibatch", 0, 0), (1, "minibatch", 7, 3), (2, "minibatch", 7, 3),
    (1, "selection", 0, 0), (1, "selection", 1, 19), (1, "availability", 0, 5), (3, "offset", 0, 0),
    (1, "noise", 2, 11), (1, "augment", 2, 11), (1, "initial-model", 0, 0), (1, "label-probability", 0, 0),
    (2**63 - 1, "phase", 0, 0), (1, "minibatch", 2**40, 2**50),
]  # fmt: skip


def random_words() -> str:
    """Raw words, a permutation, integers and normal numbers at fixed addresses, written out."""
    lines = ["# Random numbers at fixed addresses (seed, purpose, client, counter); fedmpi/rng.py", ""]
    for address in ADDRESSES:
        raw = rng.stream(*address).bit_generator.random_raw(4)
        seed, purpose, client, counter = address
        lines.append(f'({seed}, "{purpose}", {client}, {counter})')
        lines.append("  words        " + " ".join(f"{word:016x}" for word in raw.tolist()))
        lines.append("  permutation  " + " ".join(map(str, rng.permutation(*address, 12).tolist())))
        lines.append("  integer      " + str(rng.integer(*address)))
        lines.append("  uniform      " + " ".join(map(repr, rng.stream(*address).random(3).tolist())))
        normal = rng.stream(*address).standard_normal(3)
        lines.append("  normal       " + " ".join(f"{value:.12g}" for value in normal.tolist()))
    return "\n".join(lines) + "\n"


def machine() -> str:
    """What digests of models depend on besides fedmpi."""
    import torch

    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{cpu}, {capability}; torch {torch.__version__}, numpy {np.__version__}\n"


def golden_text(case: Case) -> str:
    """The text of a case: what it is, its digests, and for each variant its model and curves."""
    lines = [f"# {case.source}, made small: tests/golden/cases.py", ""]
    for number, (engine, dtype) in enumerate(case.variants):
        algorithm = replace(case.config.algorithm, engine=engine)
        config = replace(case.config, run=replace(case.config.run, dtype=dtype), algorithm=algorithm)
        if number == 0:
            lines += _data_lines(config)
        lines += _run_lines(config, number == 0, engine, dtype)
    return "\n".join(lines) + "\n"


def _data_lines(config: Config) -> list[str]:
    """Who has which samples, and in which order they are drawn."""
    clients, info = shard_of(config)
    sha = hashlib.sha256()
    for client in range(info.partition.num_clients):
        if info.partition.sizes[client]:
            for part in clients.draw(client, 0, 12):
                sha.update(np.ascontiguousarray(part.numpy()))
    return [f"partition      {info.partition.digest()}", f"minibatches    {sha.hexdigest()}"]


def _run_lines(config: Config, is_first: bool, engine: str, dtype: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        results = run_to_file(config, Path(folder) / "golden.h5")
    lines = []
    if is_first:
        sha = hashlib.sha256()
        for name, kind in (("round", "<i8"), ("client", "<i8"), ("weight", "<f8")):
            sha.update(results.participation[name].to_numpy().astype(kind).tobytes())
        lines.append(f"participation  {sha.hexdigest()}")
    x = results.global_params
    signs = np.where(np.arange(len(x)) * 2654435761 % 2**32 < 2**31, 1.0, -1.0)
    numbers = [math.sqrt(math.fsum(x * x)), math.fsum(x * signs), x[0], x[-1]]
    digest = hashlib.sha256(x.astype("<f8").tobytes()).hexdigest()
    lines += [
        "",
        f"[{engine}, {dtype}]  {results.status} after {len(results.train)} rounds",
        f"model          {digest}",
        "norm, signed sum, first, last  " + "  ".join(f"{value:.12g}" for value in numbers),
        "round  train loss          test loss",
    ]
    for row in results.eval.itertuples():
        lines.append(f"{row.round:5d}  {row.train_loss:<18.12g}  {row.test_loss:.12g}".rstrip())
    if config.task.name != "classification":
        last = results.eval.iloc[-1]
        lines += [f"last {name}  {last[name]:.12g}" for name in results.metrics]
    return lines


def differences(expected: str, found: str, *, exact: bool) -> list[str]:
    """Lines that differ by more than they may; `exact`: this machine rounds as that of the files did."""
    wanted, seen = expected.splitlines(), found.splitlines()
    if len(wanted) != len(seen):
        return [f"{len(wanted)} lines expected, {len(seen)} found"]
    dtype, problems = "float64", []
    is_portable = "quadratic problem" in wanted[0]
    for number, (a, b) in enumerate(zip(wanted, seen, strict=True), start=1):
        if header := re.match(r"\[\w+, (\w+)\]", a):
            dtype = header[1]
        if a == b or (a.startswith("model ") and not exact and not is_portable):
            continue
        if a.startswith("#") or not _is_close(a, b, 0.0 if is_portable and exact else TOLERANCE[dtype]):
            problems.append(f"line {number}: expected {a!r}, found {b!r}")
    return problems


_NUMBER = re.compile(r"(?<![\w.+-])[-+]?(?:\d+\.\d*(?:e[-+]?\d+)?|\d+e[-+]?\d+|inf|nan)(?![\w.])")


def _is_close(a: str, b: str, tolerance: float) -> bool:
    """The same text but for decimal numbers, which may differ by a share of the largest in the line.

    Numbers of other lengths are followed by other numbers of blanks.
    """
    if _NUMBER.sub("#", a).split() != _NUMBER.sub("#", b).split():
        return False
    pairs = list(zip(map(float, _NUMBER.findall(a)), map(float, _NUMBER.findall(b)), strict=True))
    scale = max((abs(x) for pair in pairs for x in pair if math.isfinite(x)), default=0.0)
    return all(x == y or (x != x and y != y) or abs(x - y) <= tolerance * scale for x, y in pairs)


def path_of(name: str) -> Path:
    """The golden file of a case."""
    return HERE / f"{name}.txt"


def recorded_machine() -> str:
    """Where the digests of models come from."""
    return (HERE / _MACHINE).read_text()


def write_machine() -> None:
    """Note where they come from now."""
    (HERE / _MACHINE).write_text(machine())
