"""Configs of earlier versions that are gone: what to say instead.

Invariant: each command works as it stands.
"""

from __future__ import annotations

import re

# Path below configs/, without .toml; the experiment that has it now, and which of its curves.
_MOVED = {
    r"paper/(fashion|cifar)-sweep": r"paper-\1",
    r"paper/(fashion|cifar)-(always|initial)-sweep": r"\2-\1",
    r"paper/(fashion|cifar)-always-(uniform|permutation)": r"always-\1 --only \2",
    r"paper/(fashion|cifar)-wait-sweep": r"paper-\1 --only 'wait-*'",
    r"paper/(fashion|cifar)-amplified-p(1|100|300|700|900)": r"paper-\1 --only P-\2",
    r"paper/(fashion|cifar)-(amplified|no-amplification|wait-full|wait-minibatch)": r"paper-\1 --only \2",
    r"periodic/fashion-([a-z-]+)": r"periodic --only \1",
    r"periodic/cifar-([a-z-]+)": r"periodic-cifar --only \1",
    r"unknown-participation/bernoulli-([a-z-]+)": r"fedau-table --only \1",
    r"unknown-participation/([a-z-]+)": r"unknown-participation --only \1",
    r"motivating/gamma([\d.]+)-eta(\d+)": r"appendix --only gamma-\1-eta-\2",
    r"theory/([a-z]+)": r"theory --only \1",
}


def command_for(path: str) -> str:
    """What does now what a config of an earlier version did; "" if it was none."""
    inside = re.search(r"(?:^|/)configs/(.+)\.toml$", path.replace("\\", "/"))
    for old, new in _MOVED.items():
        if inside and (found := re.fullmatch(old, inside[1])):
            return "fedmpi reproduce " + found.expand(new)
    return ""
