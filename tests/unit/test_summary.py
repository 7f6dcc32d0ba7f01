"""The table at the end of jobs/test.sh: no failure, no missing part and no skipped test is lost in it."""

from __future__ import annotations

import pytest

from tests.support.summary import main

REPORT = """<testsuites><testsuite>
<testcase classname="tests.unit.test_a" name="test_good"/>
<testcase classname="tests.unit.test_a" name="test_also_good"/>
<testcase classname="tests.unit.test_a" name="test_away"><skipped message="no chromium"/></testcase>{}
</testsuite></testsuites>"""
FAILURE = '<testcase classname="tests.unit.test_a" name="test_bad"><{0} message="m">text</{0}></testcase>'
GOOD = ["begin\tstyle", "end\tstyle\t3\t0", "begin\tunit", "end\tunit\t61\t0\t2.xml"]


@pytest.fixture
def ending(tmp_path, capsys):
    """What is printed for these lines and this report; and whether the verdict was good."""

    def show(lines: list[str], report: str = REPORT.format("")) -> tuple[str, bool]:
        (tmp_path / "parts").write_text("\n".join(lines) + "\n")
        (tmp_path / "2.xml").write_text(report)
        try:
            main(str(tmp_path), "64")
        except SystemExit as end:
            return capsys.readouterr().out, not end.code
        return capsys.readouterr().out, True

    return show


def test_all_is_well(ending):
    """Seconds and counts of each part, each skipped test with its reason, and the verdict."""
    out, is_good = ending(GOOD)
    assert is_good
    rows = [line.split() for line in out.splitlines()]
    assert ["style", "3", "-", "-", "-"] in rows
    assert ["unit", "61", "2", "0", "1"] in rows
    assert "skipped: tests/unit/test_a.py::test_away: no chromium (unit)" in out
    assert out.endswith("fedmpi tests: all passed, 1 skipped\n")


@pytest.mark.parametrize("kind", ["failure", "error"])
def test_a_failure_is_named(ending, kind):
    """A report with a failed test is a failure, whatever status its part had."""
    out, is_good = ending(GOOD, REPORT.format(FAILURE.format(kind)))
    assert not is_good
    assert "failed: tests/unit/test_a.py::test_bad (unit)" in out


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([*GOOD[:3], "end\tunit\t61\t1\t2.xml"], "1  FAILED"),
        (GOOD[:3], "DID NOT END"),
        ([*GOOD[:1], "end\tstyle\t3\t1", *GOOD[2:]], "-  FAILED"),
        ([*GOOD[:3], "end\tunit\t61\t0\tmissing.xml"], "-  FAILED"),
    ],
    ids=["status", "no end", "style", "no report"],
)
def test_other_ways_to_fail(ending, lines, words):
    """A bad status, a part that did not end, and a report that is not there are failures."""
    out, is_good = ending(lines)
    assert not is_good
    assert words in out
