"""Links of the pages lead somewhere: files, headings of other pages, tests that are named as proofs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.configs import ROOT

PAGES = sorted(
    [*ROOT.glob("*.md"), *(path for name in ("analysis", "configs", "jobs", "fedmpi", "tests")
                           for path in (ROOT / name).rglob("*.md"))]
)  # fmt: skip
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def text_of(page: Path) -> str:
    """Without blocks and pieces of code, whose brackets are no links."""
    return re.sub(r"`[^`\n]*`", "code", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S))


def anchors(page: Path) -> set[str]:
    """What a link to a heading is called on GitHub."""
    plain = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", plain, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_headings_have_the_names_that_github_gives(tmp_path):
    """Small letters, no punctuation, hyphens for spaces; code is no heading."""
    (tmp_path / "a.md").write_text("# Kill it, resume it\n```\n# no heading\n```\n## `run.seed`: why\n")
    assert anchors(tmp_path / "a.md") == {"kill-it-resume-it", "runseed-why"}


def test_pages_are_found():
    """The README of each folder is among them."""
    assert len([page for page in PAGES if page.name == "README.md"]) == 6


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    """Each link within the repository names a file that is there, and a heading that it has."""
    lost = []
    for link in _LINK.findall(text_of(page)):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert not lost


def test_proofs_are_there():
    """Each test that README.md names as a proof stands in the file beside it."""
    found = re.findall(r"`(test_\w+)`[^|`]*?\[test_\w+\.py\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert len(found) > 10
    assert [name for name, path in found if f"def {name}(" not in (ROOT / path).read_text()] == []
