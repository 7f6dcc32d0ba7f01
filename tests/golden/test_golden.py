"""Results are pinned over versions: random numbers, data, participation, models and curves, as text files.

A change that should not alter results passes here as it is. One that should refreshes the files in a commit
of its own: `python -m tests.golden.refresh`.
"""

from __future__ import annotations

import pytest
import torch

from tests.golden.cases import cases
from tests.golden.record import (
    HERE,
    differences,
    golden_text,
    machine,
    path_of,
    random_words,
    recorded_machine,
)

CASES = {case.name: case for case in cases()}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Bits are those of one thread, as runs have it."""
    torch.set_num_threads(1)


def test_random_words():
    """The words at a dozen fixed addresses are the numbers that are written out."""
    assert random_words() == path_of("randomness").read_text()


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    """A small run of every shipped protocol, method and model gives what its file says."""
    expected = path_of(name).read_text()
    problems = differences(expected, golden_text(CASES[name]), exact=machine() == recorded_machine())
    assert not problems, "\n".join([f"{path_of(name)}:", *problems])


def test_every_file_has_its_case():
    """No golden file is left over, and none is missing."""
    files = {str(p.relative_to(HERE).with_suffix("")) for p in HERE.rglob("*.txt")}
    assert files - {"machine", "randomness"} == set(CASES)


@pytest.mark.parametrize(
    ("line", "other", "exact", "is_equal"),
    [
        ("model          ab12", "model          ab13", True, False),
        ("model          ab12", "model          ab13", False, True),
        ("participation  ab12", "participation  ab13", False, False),
        ("    4  2.30000000000       2.1", "    4  2.30000000001       2.1", True, True),
        ("    4  2.30000000000       2.1", "    4  2.30001000000       2.1", True, False),
        ("    4  2.3000000001  2.1", "    4  2.3           2.1", True, True),
        ("    4  2.3       nan", "    4  2.3       nan", True, True),
        ("    4  2.3       2.1", "    8  2.3       2.1", True, False),
    ],
)
def test_differences(line, other, exact, is_equal):
    """Digests of data are exact, those of models only on the same machine; numbers have a tolerance."""
    problems = differences(f"# a\n[loop, float64]\n{line}", f"# a\n[loop, float64]\n{other}", exact=exact)
    assert (not problems) is is_equal
