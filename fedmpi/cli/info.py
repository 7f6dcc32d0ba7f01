"""`fedmpi info`: what a result file holds."""

from __future__ import annotations

import json

from fedmpi.config import validate
from fedmpi.config.effects import config_text
from fedmpi.errors import ConfigError
from fedmpi.mpi import placement
from fedmpi.results.costs import cost_line, hint
from fedmpi.results.text import bytes_text, duration
from fedmpi.storage.reader import load_run


def info(path: str, *, everything: bool = False) -> int:
    """Print status, last metrics, provenance and config."""
    run = load_run(path)
    attributes = run.attributes
    total = run.config["run"]["num_rounds"]
    print(f"{path} ({bytes_text(run.path.stat().st_size)})")
    print(f"  status     {run.status}, {len(run.train):,} of {total:,} rounds")
    if len(run.train):
        print(f"  time       {duration(run.train.wall_time_s.iloc[-1])}")
        print(f"  cost       {cost_line(run)}")
    if len(run.eval):
        last = run.eval.iloc[-1]
        metrics = [
            f"{name} {last[name]:.6g}" for name in run.eval.columns if name not in ("round", "wall_time_s")
        ]
        print(f"  last eval  round {last['round']:.0f}: {', '.join(metrics)}")
    for text in filter(None, [hint(run)]):
        print(f"  hint       {text}")
    print(
        f"  created    {attributes['created_utc']} by {attributes['creator']}, run {attributes['run_id']}"
    )
    print(f"  ranks      {attributes['num_ranks']} on {', '.join(sorted(set(attributes['host_names'])))}")
    for line in placement.table(placement.from_json(attributes.get("placement", "[]"))):
        print(f"             {line}")
    print(f"  devices    {', '.join(sorted(set(attributes['device_names'])))}; {attributes['mpi_library']}")
    versions = json.loads(attributes["versions"])
    print(f"  versions   {', '.join(f'{name} {version}' for name, version in versions.items())}")
    print(f"  digests    data {attributes['data_digest'][:16]}, model {attributes['model_digest'][:16]}")
    print(
        "  tables     "
        + ", ".join(
            f"{name} {len(getattr(run, name)):,}" for name in ("train", "eval", "participation", "clients")
        )
    )
    print(f"\n{_config_text(attributes['config'], path, everything=everything)}", end="")
    return 0


def _config_text(stored: str, path: str, *, everything: bool) -> str:
    """The keys that have an effect; all that is stored, if asked for or of another version."""
    if everything:
        return stored
    try:
        return config_text(validate.parse(stored, path), everything=False)
    except ConfigError:
        return stored
