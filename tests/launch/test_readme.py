"""Every command in the `console` blocks of README.md and the folders' pages runs as it stands there.

One test each. They build on each other, over all pages: a test first runs the examples that make its files,
unless that was done before.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from fedmpi.cli.arguments import make_parser
from tests.support.commands import in_process, with_tests_on_the_path
from tests.support.configs import ROOT

PAGES = [f"{folder}README.md" for folder in ("", "configs/", "analysis/", "jobs/", "fedmpi/", "tests/")]
_TEXT = "\n".join((ROOT / page).read_text() for page in PAGES)
_ELSEWHERE = ("bash jobs/", "git ", "cd ", "srun ", "sbatch ")  # run by other tests, or on a cluster


def _files() -> dict[str, str]:
    """Blocks that have a name, ```toml first.toml: what they hold."""
    found = {}
    for block in _TEXT.split("```")[1::2]:
        language, _, body = block.partition("\n")
        if language.startswith(("toml ", "python ")):
            assert language.split()[1] not in found, f"two blocks are {language}"
            found[language.split()[1]] = body
    return found


def _commands() -> list[str]:
    """Lines after a prompt, in the order of the page."""
    blocks = [block.split("```")[0] for block in _TEXT.split("```console\n")[1:]]
    lines = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [line for line in lines if not line.startswith(_ELSEWHERE)]


_RUN_BY_OTHERS = ("to_trackers.py",)  # tests/unit/test_at_once.py

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
    """A folder with the pages' files, and which commands ran there."""

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
    assert len(COMMANDS) > 40
    makers = {COMMANDS[i]: [COMMANDS[maker] for maker in _makers(i)] for i in range(len(COMMANDS))}
    (needed,) = [found for command, found in makers.items() if command.startswith("fedmpi diff ")]
    assert [command.split("--out ")[1].split()[0] for command in needed] == ["first.h5", "plain.h5"]
    assert not makers["fedmpi check first.toml --ranks 2"]


def test_all_blocks_are_used():
    """A file in a block is part of a command, or of a file that is; blocks of code have names."""
    used = " ".join([*COMMANDS, *FILES.values()])
    for name in FILES:
        is_used = name in used or f"{name.removesuffix('.py')}:" in used
        assert is_used or name in _RUN_BY_OTHERS, name
    bare = [block for block in _TEXT.split("```")[1::2] if block.startswith(("python\n", "toml\n"))]
    assert [block.split("\n")[1] for block in bare] == [
        'about = "Our cluster, GPU nodes"'
    ]  # test_job_site.py


def _untried() -> list[str]:
    """`fedmpi ...` in blocks without a prompt: for a cluster, a long time, or a fault that happened."""
    blocks = [block for block in _TEXT.split("```")[1::2] if block.startswith("\n")]
    lines = [line.strip().partition(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [
        line[line.index("fedmpi ") :] for line in lines if re.match(r"(srun .*|mpirun .*)?fedmpi ", line)
    ]


@pytest.mark.parametrize("line", _untried())
def test_what_is_not_run_is_at_least_a_command(line):
    """Its words are accepted by the command's parser."""
    words = shlex.split(line.replace("fedmpi sweep best", "fedmpi sweep-best"))[1:]
    assert make_parser().parse_args(words)


def test_there_are_such_lines():
    """They are found."""
    assert len(_untried()) > 8


@pytest.mark.parametrize("number", range(len(COMMANDS)), ids=COMMANDS)
def test_example(examples, number):
    """The command ends with status 0, or with 1 where the page says `|| true`."""
    done = examples.run(number)
    assert done.returncode == COMMANDS[number].endswith(" || true"), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
