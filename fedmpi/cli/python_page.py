"""The public Python names, as a page (analysis/PYTHON.md), read from signatures and docstrings.

Invariant: `fedmpi.__all__` and this page have the same names.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from fedmpi.data.prepared import Dataset, write_dataset
from fedmpi.errors import ConfigError, OutputError, UserError
from fedmpi.experiments import api
from fedmpi.experiments.preview import Preview
from fedmpi.methods import Method
from fedmpi.results.fairness import fairness
from fedmpi.results.many_runs import load_runs
from fedmpi.results.paired import Comparison, Difference, compare
from fedmpi.storage.reader import Run, load_run

FUNCTIONS = (api.run, api.resume, api.sweep, api.check, api.advise, load_run, load_runs, compare, fairness)
_RECORDS = {Run: "fedmpi", Preview: "", Comparison: "", Difference: "", Dataset: "fedmpi.data.prepared"}
_ERRORS = (UserError, ConfigError, OutputError)

_HEAD = """\
# The public Python names

Written by `fedmpi schema --page python`; `help(fedmpi.run)` prints the same. "Collective" means that all
ranks of a program make the call. Names that do not stand here may change without a word.

`fedmpi.is_root()`: whether this process is rank 0, which prints and draws; `fedmpi.__version__`.
"""


def python_page() -> str:
    """Markdown."""
    lines = [_HEAD, "## Functions"]
    for function in FUNCTIONS:
        lines += ["", f"### fedmpi.{function.__name__}", "", *_call(function.__name__, function)]
        lines += ["", *_text(function)]
    lines += ["", "## What they return, and what they take"]
    for record, module in _RECORDS.items():
        lines += [
            "",
            f"### {f'{module}.' * bool(module)}{record.__name__}",
            "",
            *_text(record),
            "",
            *_members(record),
        ]
    lines += ["", "`fedmpi.data.prepared.write_dataset(path, dataset)`: " + inspect.getdoc(write_dataset)]
    lines += ["", "### fedmpi.methods.Method", "", *_text(Method), ""]
    lines += [
        "A method of your own overrides some of these ([base.py](../fedmpi/methods/base.py)):",
        "",
    ]
    lines += _hooks(Method)
    lines += ["", "### fedmpi.errors", ""]
    lines += [f"- `{kind.__name__}`: {_first(kind)}" for kind in _ERRORS]
    return "\n".join([*lines, ""])


def _call(name: str, function: Any) -> list[str]:
    """The signature without types, folded."""
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        shown = f"**{parameter.name}" if parameter.kind is parameter.VAR_KEYWORD else parameter.name
        has_default = parameter.default is not parameter.empty
        parameters.append(f"{shown}={parameter.default!r}" if has_default else shown)
    return [f"`{name}({', '.join(parameters)})`"]


def _text(thing: Any) -> list[str]:
    """A docstring as it stands: its tables are aligned by spaces."""
    text = re.sub(r" +# doctest: \+SKIP", "", inspect.getdoc(thing))
    return ["```text", text, "```"]


def _members(record: type) -> Iterator[str]:
    """Fields with the comments that stand beside them, then functions."""
    source = inspect.getsource(record)
    yield "| name | is |"
    yield "|---|---|"
    for name in getattr(record, "__dataclass_fields__", {}):
        line = re.search(rf"^    {name}: .*?(?:  # (.*))?$", source, re.MULTILINE)
        yield f"| `{name}` | {(line[1] or '') if line else ''} |"
    for name, value in vars(record).items():
        if name.startswith("_") or not (inspect.isfunction(value) or isinstance(value, property)):
            continue
        shown = name if isinstance(value, property) else f"{name}()"
        yield f"| `{shown}` | {_first(value)} |"


def _hooks(method: type) -> Iterator[str]:
    """Attributes with their comments, then functions, in the order in which a run calls them."""
    yield from (
        f"- `{name} = {default}`: {meaning}"
        for name, default, meaning in re.findall(
            r"^    (\w+)(?:: [^=]+)? = (\S+)  # (.*)$", inspect.getsource(method), re.MULTILINE
        )
    )
    for name, value in vars(method).items():
        if inspect.isfunction(value) and not name.startswith("_"):
            yield f"- `{name}({', '.join(inspect.signature(value).parameters)})`: {_first(value)}"


def _first(thing: Any) -> str:
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())
