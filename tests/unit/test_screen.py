"""What a sweep shows while it goes on, and the colour of states."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

from fedmpi.cli.screen import Screen
from fedmpi.cli.watch import watch
from fedmpi.experiments.sweep.store import RUNNING, WAITING
from fedmpi.results.colour import with_colour
from tests.support.run_files import finished_run


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


class Folder:
    """The folder of a sweep, as far as a screen looks into it; tests write what became of runs."""

    def __init__(self, notes) -> None:
        self.notes, self.ended = notes, {}

    def outcome(self, name):
        return self.ended.get(name)

    def is_final(self, point, outcome) -> bool:
        return outcome is not None

    def status(self, name, outcome) -> str:
        if outcome:
            return outcome.status
        return RUNNING if (self.notes / f"{name}.progress").exists() else WAITING

    def end(self, name: str, status: str, message: str = "") -> None:
        (self.notes / f"{name}.json").write_text("{}")
        self.ended[name] = SimpleNamespace(
            status=status, time=1.0, rounds=1000, metrics={"train_loss": 0.5}, message=message
        )


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """A screen on a stream, of three runs, and its folder; each look is due at once."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("PMIX_RANK", raising=False)

    def make(stream):
        monkeypatch.setattr(sys, "stdout", stream)
        folder = Folder(tmp_path)
        screen = Screen(folder, [SimpleNamespace(name=name) for name in ("a", "b", "c")])
        for name, share in (("a", "0.5 1"), ("b", "0.25 1")):
            (tmp_path / f"{name}.progress").write_text(share)
        return screen, folder

    return make


def look(screen: Screen) -> None:
    """A redraw that is due."""
    screen._next = screen._next_line = 0.0
    screen.redraw()


def shown(text: str) -> list[str]:
    """What a terminal shows after all of this: of the control codes only those that a screen uses."""
    lines, row = [""], 0
    for part in text.replace("\x1b[J", "\x00").split("\x1b["):
        if part[:1].isdigit():
            rest = part.lstrip("0123456789")
            count = int(part[: -len(rest)])
            row, part = (row - count if rest[0] == "A" else row), rest[1:]
        for c in part:
            if c == "\r":
                lines[row] = lines[row] if "\x00" not in part else ""
            elif c == "\x00":
                lines[row:] = [""]
            elif c == "\n":
                row += 1
                lines += [""] * (row == len(lines))
            else:
                lines[row] += c
    return lines


def test_a_terminal_has_a_bar_for_each_run_that_goes_on(sweep):
    """Bars are redrawn below the lines of runs that ended, which stay; in the end no bar is left."""
    stream = Terminal()
    screen, folder = sweep(stream)
    look(screen)
    assert shown(stream.getvalue())[1:] == [
        "   50% ██████████░░░░░░░░░░ a", "   25% █████░░░░░░░░░░░░░░░ b"
    ]  # fmt: skip
    (folder.notes / "b.progress").write_text("0.75 1")
    folder.end("a", "done")
    look(screen)
    first, second, *bars = shown(stream.getvalue())
    assert first == "done     a  1,000 rounds  train loss 0.5000"
    assert second.startswith("1/3 runs: 1 done, 1 running, 1 waiting (75%)")
    assert bars == ["   75% ███████████████░░░░░ b"]
    folder.end("b", "failed", "out of memory")
    folder.end("c", "diverged")
    screen.close()
    assert [line.split()[0] for line in shown(stream.getvalue())[:-1]] == [
        "done",
        "failed",
        "diverged",
        "3/3",
    ]
    assert "\x1b[31mfailed\x1b[0m" in stream.getvalue()


def test_a_log_file_gets_plain_lines(sweep):
    """No control code, no bar, nothing redrawn."""
    stream = io.StringIO()
    screen, folder = sweep(stream)
    look(screen)
    folder.end("a", "done")
    look(screen)
    screen.close()
    lines = stream.getvalue().splitlines()
    assert "\x1b" not in stream.getvalue()
    assert lines[0].startswith("0/3 runs: 2 running, 1 waiting (50%, 25%)")
    assert lines[1] == "done     a  1,000 rounds  train loss 0.5000"
    assert len(lines) == 4


def test_a_low_and_narrow_terminal(sweep, monkeypatch):
    """Never more lines than the terminal has, nor longer ones: they could not be redrawn."""
    monkeypatch.setenv("LINES", "3")
    monkeypatch.setenv("COLUMNS", "24")
    stream = Terminal()
    screen, _ = sweep(stream)
    monkeypatch.setenv("COLUMNS", "24")
    look(screen)
    lines = shown(stream.getvalue())
    assert len(lines) == 2
    assert max(map(len, lines)) < 24


@pytest.mark.parametrize(
    ("environment", "is_terminal"), [({}, False), ({"NO_COLOR": "1"}, True), ({"TERM": "dumb"}, True)]
)
def test_colour_switches_itself_off(monkeypatch, environment, is_terminal):
    """In logs and pipes, where nobody wants it, and where it cannot be shown."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert with_colour("1 done", is_terminal=True) == "1 \x1b[32mdone\x1b[0m"
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert with_colour("1 done", is_terminal=is_terminal) == "1 done"


def test_names_have_no_colour(monkeypatch):
    """A word is coloured, not a part of a run's name."""
    monkeypatch.setenv("TERM", "xterm")
    assert with_colour("a-done.h5 undone", is_terminal=True) == "a-done.h5 undone"


def test_watch_has_colour_on_a_terminal(tmp_path, monkeypatch):
    """The live view colours states; its one frame for a pipe has none."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    path = str(finished_run(tmp_path / "r.h5"))
    for stream, has_colour in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stdout", stream)
        assert watch(path, once=False, every=0.1) == 0
        assert ("\x1b[32mdone\x1b[0m" in stream.getvalue()) is has_colour
