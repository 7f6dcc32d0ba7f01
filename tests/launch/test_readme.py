"""Every command in the README's `console` blocks runs as it stands there, one test each.

They build on each other: a test first runs the examples that make its files, unless that was done before.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import in_process, with_tests_on_the_path
from tests.support.configs import ROOT

_TEXT = (ROOT / "README.md").read_text()
_ELSEWHERE = ("bash jobs/", "git ", "cd ", "srun ", "sbatch ")  # run by other tests, or on a cluster


def _files() -> dict[str, str]:
    """Blocks that have a name, ```toml first.toml: what they hold."""
    found = {}
    for block in _TEXT.split("```")[1::2]:
        language, _, body = block.partition("\n")
        if language.startswith(("toml ", "python ")):
            found[language.split()[1]] = body
    return found


def _commands() -> list[str]:
    """Lines after a prompt, in the order of the page."""
    blocks = [block.split("```")[0] for block in _TEXT.split("```console\n")[1:]]
    lines = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [line for line in lines if not line.startswith(_ELSEWHERE)]


FILES, COMMANDS = _files(), _commands()


def _results_named(command: str) -> set[str]:
    """Names of results in a command, and in a script that it runs."""
    scripts = "".join(FILES.get(word, "") for word in command.split() if word.endswith(".py"))
    return set(re.findall(r"[\w-]+\.h5", command + scripts)) | set(re.findall(r"\brates\b", command))


def _results_made(command: str) -> set[str]:
    """Names of results that a command makes."""
    if command.startswith("python "):
        return _results_named(command)
    words = command.split()
    return {words[words.index("--out") + 1]} if "--out" in words and "--list" not in words else set()


def _makers(number: int) -> list[int]:
    """The examples that make a command's files, each by the first that does."""
    makers = set()
    for name in _results_named(COMMANDS[number]):
        first = next((i for i, other in enumerate(COMMANDS) if name in _results_made(other)), number)
        makers |= {first} if first < number else set()
    return sorted(makers)


class Examples:
    """A folder with the README's files, and which commands ran there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._done: dict[int, subprocess.CompletedProcess] = {}
        for name, body in FILES.items():
            (folder / name).write_text(body)
        (folder / "configs").symlink_to(ROOT / "configs")

    def run(self, number: int) -> subprocess.CompletedProcess:
        """What became of a command, now or earlier."""
        if number not in self._done:
            for maker in _makers(number):
                assert self.run(maker).returncode == 0, f"an example before this fails: {COMMANDS[maker]}"
            self._done[number] = self._call(COMMANDS[number].removesuffix(" || true"))
        return self._done[number]

    def _call(self, command: str) -> subprocess.CompletedProcess:
        if command.startswith("fedmpi ") and not command.startswith("fedmpi verify"):
            return in_process(self.folder, *shlex.split(command)[1:])
        return subprocess.run(
            command, shell=True, cwd=self.folder, env=with_tests_on_the_path({}),
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip


@pytest.fixture(scope="module")
def examples(tmp_path_factory) -> Examples:
    """One folder for all examples."""
    return Examples(tmp_path_factory.mktemp("readme"))


def test_all_examples_are_found():
    """Each line with a prompt is an example or belongs elsewhere, and knows who makes its files."""
    prompts = re.findall(r"^\$ (.*)", _TEXT, re.MULTILINE)
    assert [line for line in prompts if not line.startswith(_ELSEWHERE)] == COMMANDS
    assert len(COMMANDS) > 30
    makers = {COMMANDS[i]: [COMMANDS[maker] for maker in _makers(i)] for i in range(len(COMMANDS))}
    (needed,) = [found for command, found in makers.items() if command.startswith("fedmpi diff ")]
    assert [command.split("--out ")[1].split()[0] for command in needed] == ["first.h5", "plain.h5"]
    assert not makers["fedmpi check first.toml --ranks 2"]


@pytest.mark.parametrize("number", range(len(COMMANDS)), ids=COMMANDS)
def test_example(examples, number):
    """The command ends with status 0, or with 1 where the page says `|| true`."""
    done = examples.run(number)
    assert done.returncode == COMMANDS[number].endswith(" || true"), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
