"""Profiles of sites: what `fedmpi slurm` asks for on a cluster that is not like the others.

A profile is a small TOML file; its keys are the options of `fedmpi slurm`, which win over it. Those of
`sites/` come with fedmpi, anybody may write one. Invariant: keys are closed, and all problems of a file are
one error.
"""

from __future__ import annotations

import os
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmpi.errors import ConfigError, UserError, did_you_mean
from fedmpi.experiments.job_request import HINTS, LAUNCHERS
from fedmpi.experiments.job_script import option_kind, option_name

_SHIPPED = Path(__file__).parent / "sites"
_COUNTS = ("gpus_per_node", "gpus_per_task", "memory_mb", "memory_per_gpu_mb", "retries")  # 0 is possible
_NUMBERS = ("nodes", "ranks_per_node", "cpus_per_rank", "lead")
_WORDS = ("account", "partition", "qos", "constraint", "mpi")
_LISTS = ("sbatch", "srun", "setup", "needs")
_KEYS = ("about", "gres", "hint", "launcher", *_COUNTS, *_NUMBERS, *_WORDS, *_LISTS)
OPTIONS = ("hint", "launcher", *_COUNTS, *_NUMBERS, *_WORDS)  # of `fedmpi slurm` too, where they win
_NEEDED = ("account", "partition", "qos", "constraint")
_SECONDS = 20  # for sinfo to answer


@dataclass(frozen=True)
class Site:
    """A profile that was read and is valid."""

    source: str  # for messages
    about: str
    needs: tuple[str, ...]  # options without which the site takes no job
    settings: dict[str, Any]  # values of options by their names


def load_site(name: str) -> Site:
    """A profile by the name of a shipped one, or by the path of a TOML file."""
    path = Path(name)
    if path.suffix != ".toml" and path.name == name:
        path = _SHIPPED / f"{name}.toml"
        known = sorted(file.stem for file in _SHIPPED.glob("*.toml"))
        if name not in known:
            raise UserError(
                f"--site {name}: unknown site; {did_you_mean(name, known)}; "
                "or write a TOML file of your own (jobs/README.md) and give its path, --site ./NAME.toml"
            )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise UserError(f"--site {name}: {reason}; name a TOML file, see jobs/README.md") from None
    return parse_site(text, name)


def parse_site(text: str, source: str) -> Site:
    """A profile from its text."""
    where = f"site profile {source}"
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError([f"not valid TOML: {error}"], where) from None
    problems = list(_problems(table))
    if problems:
        raise ConfigError(problems, where)
    settings = {key: value for key, value in table.items() if key not in ("about", "needs")}
    return Site(source, table.get("about", Path(source).stem), tuple(table.get("needs", ())), settings)


def _problems(table: dict[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        if key not in _KEYS:
            yield f"{key}: unknown key; {did_you_mean(key, _KEYS)}"
        elif (expected := _expected(key)) and not _fits(key, value):
            yield f"{key} = {value!r}: expected {expected}"
    if _fits("needs", table.get("needs")):
        for name in set(table["needs"]) - set(_NEEDED):
            yield f"needs: {name!r} is not an option that a site can need; {did_you_mean(name, _NEEDED)}"
    if _fits("sbatch", table.get("sbatch")):
        for line in table["sbatch"]:
            try:
                sbatch_line(line)
            except UserError as error:
                yield str(error)


def _expected(key: str) -> str:
    choices = {"gres": "true or false", "hint": f"one of {', '.join(HINTS)}", "launcher": "srun or mpirun"}
    if key in choices:
        return choices[key]
    if key in _COUNTS:
        return "an integer >= 0"
    if key in _NUMBERS:
        return "an integer >= 1"
    return "a list of lines of text" if key in _LISTS else "a line of text"


def _fits(key: str, value: Any) -> bool:
    """Whether a value is of the key's kind."""
    if key == "gres":
        return isinstance(value, bool)
    if key in _COUNTS or key in _NUMBERS:
        return isinstance(value, int) and not isinstance(value, bool) and value >= (key in _NUMBERS)
    if key in _LISTS:
        return isinstance(value, list) and all(map(_is_line, value))
    allowed = {"hint": HINTS, "launcher": LAUNCHERS}.get(key)
    return _is_line(value) and (allowed is None or value in allowed)


def _is_line(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and value.isprintable()


def sbatch_line(text: str) -> str:
    """An option of sbatch as a script has it, from `--mail-type=END`, `mail-type=END` or a whole line.

    >>> sbatch_line("#SBATCH --mem=0"), sbatch_line("mem=0"), sbatch_line("-C gpu")
    ('--mem=0', '--mem=0', '-C gpu')
    """
    line = text.strip().removeprefix("#SBATCH").strip()
    line = line if line.startswith("-") else f"--{line}"
    if not line.isprintable() or not option_name(line):
        raise UserError(f"sbatch {text!r}: expected one option of sbatch, such as --mail-type=END")
    return line


def refuse_missing_needs(site: Site, asked: dict[str, Any]) -> None:
    """A site takes no job without its account, in what was `asked`; sbatch also reads SBATCH_ACCOUNT."""
    given = {option_kind(option_name(line) or "") for line in asked["sbatch"]}
    for name in site.needs:
        if not asked[name] and name not in given and f"SBATCH_{name.upper()}" not in os.environ:
            raise UserError(f"--site {site.source}: {site.about} takes no job without --{name}; give one")


def refuse_unknown_partition(wanted: str, source: str) -> None:
    """Where SLURM answers, a partition that it does not have is refused now, and not by sbatch later."""
    known = _partitions() if wanted else ()
    missing = [name for name in wanted.split(",") if name and name not in known] if known else []
    if missing:
        raise UserError(
            f"{source}: partition {missing[0]} does not exist on this cluster; "
            f"{did_you_mean(missing[0], known)}; name another with --partition"
        )


def _partitions() -> tuple[str, ...]:
    """All partitions that SLURM has; none where there is no SLURM here, or it does not answer."""
    try:
        answer = subprocess.run(
            ["sinfo", "--all", "--noheader", "--format=%R"],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(sorted(set(answer.stdout.split()))) if answer.returncode == 0 else ()
