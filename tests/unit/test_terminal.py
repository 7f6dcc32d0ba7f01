"""What a person sees: progress, durations, sizes, and what `info` and `check` print."""

from __future__ import annotations

import io
import math
import time

import pytest

from fedmpi.cli.check import check
from fedmpi.cli.info import info
from fedmpi.config import validate
from fedmpi.errors import UserError
from fedmpi.experiments.progress import Progress
from fedmpi.results.text import bytes_text, duration
from tests.support.run_files import add_rounds, attributes, create_run, finished_run


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0.0s"),
        (7.25, "7.2s"),
        (59.9, "59.9s"),
        (59.96, "1m00s"),
        (60, "1m00s"),
        (75, "1m15s"),
        (3599.9, "59m59s"),
        (3600, "1h00m"),
        (3700, "1h01m"),
        (86_399, "23h59m"),
        (86_400, "1d00h"),
        (200_000, "2d07h"),
        (math.inf, "?"),
        (math.nan, "?"),
    ],
)
def test_duration(seconds, expected):
    """Durations are told in the two largest units that fit."""
    assert duration(seconds) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_960, "1.0 MB"),
        (1_828_688, "1.8 MB"),
        (999_900_000, "999.9 MB"),
        (2.5e12, "2500.0 GB"),
    ],
)
def test_bytes(count, expected):
    """Sizes are told in the largest unit that fits, of powers of 1000."""
    assert bytes_text(count) == expected


# Progress.


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests set: `clock[0]` is the time."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def metrics(loss: float, accuracy: float) -> dict[str, float]:
    """An evaluation, as the loop tells it."""
    return {"train_loss": loss, "test_accuracy": accuracy}


def test_log_gets_plain_lines(clock):
    """Where the output is no terminal, progress is a plain line every ten seconds, and one at the end."""
    stream = io.StringIO()
    progress = Progress(stream)
    progress.expects(1000)
    for completed in range(1, 251):
        clock[0] += 0.1
        progress.round_done(completed)
    progress.ended(250)
    lines = stream.getvalue().splitlines()
    assert stream.getvalue().endswith("\n")
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()
    # 25 seconds: at once, after ten, after twenty, and the last.
    assert [line.split(" rounds")[0].split()[-1] for line in lines] == [
        "1/1,000", "101/1,000", "201/1,000", "250/1,000"
    ]  # fmt: skip


def test_progress_line_by_hand(clock):
    """A line tells share, rounds, rate, elapsed and remaining time, and the latest metrics."""
    stream = io.StringIO()
    progress = Progress(stream)
    progress.expects(2000)
    clock[0] += 100
    progress.evaluated(metrics(1.23456, 0.4996))
    progress.round_done(500)
    assert stream.getvalue() == (
        " 25% █████░░░░░░░░░░░░░░░ 500/2,000 rounds  5.0/s  elapsed 1m40s  left 5m00s"
        "  train loss 1.2346  test acc 0.500\n"
    )


@pytest.mark.parametrize(
    ("loss", "accuracy", "expected"),
    [
        (math.nan, math.nan, ""),
        (0.5, math.nan, "  train loss 0.5000"),
        (math.inf, 0.25, "  test acc 0.250"),
    ],
)
def test_metrics_that_are_not_there_are_not_shown(clock, loss, accuracy, expected):
    """A loss or accuracy that is not a number is left out."""
    stream = io.StringIO()
    progress = Progress(stream)
    progress.expects(10)
    clock[0] += 1
    progress.evaluated(metrics(loss, accuracy))
    progress.round_done(10)
    assert stream.getvalue().rstrip("\n").partition("left 0.0s")[2] == expected


def test_first_line_knows_no_rate(clock):
    """Before the first round is done, the remaining time is unknown; nothing is divided by zero."""
    stream = io.StringIO()
    progress = Progress(stream)
    progress.expects(10)
    progress.round_done(0)
    assert "  0% ░░░░░░░░░░░░░░░░░░░░ 0/10 rounds  0.0/s  elapsed 0.0s  left ?" in stream.getvalue()


def test_terminal_redraws_one_line(clock):
    """On a terminal the line is redrawn in place, at most every tenth of a second, and ended once."""
    stream = Terminal()
    progress = Progress(stream)
    progress.expects(100)
    for completed in range(1, 101):
        clock[0] += 1 / 16
        progress.round_done(completed)
    assert "\n" not in stream.getvalue()
    shown = stream.getvalue().split("\r\x1b[K")
    assert shown[0] == ""
    assert [text.split("/")[0].split()[-1] for text in shown[1:]] == [str(n) for n in range(1, 100, 2)]
    progress.ended(100)
    assert stream.getvalue().endswith("\n")
    assert stream.getvalue().count("\n") == 1
    assert "100% ████████████████████ 100/100 rounds" in stream.getvalue().split("\r\x1b[K")[-1]


def test_redrawn_line_fits_the_terminal(clock, monkeypatch):
    """A redrawn line is not wider than the terminal: what wraps around could not be redrawn."""
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    progress = Progress(stream)
    progress.expects(300_000)
    clock[0] += 12_345
    progress.evaluated(metrics(0.6034, 0.8412))
    progress.round_done(123_456)
    line = stream.getvalue().removeprefix("\r\x1b[K")
    assert "123,456/300,000" in line
    assert len(line) <= 80


def test_progress_goes_to_stderr(capsys):
    """Progress goes to stderr, results have stdout to themselves."""
    progress = Progress()
    progress.expects(10)
    progress.ended(10)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "10/10 rounds" in captured.err


# fedmpi info.


def test_info_of_a_finished_run(tmp_path, capsys):
    """`info` prints status, last metrics, provenance and the whole config."""
    path = finished_run(tmp_path / "run.h5")
    assert info(str(path)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{path} (")
    for expected in (
        "  status     done, 6 of 6 rounds",
        "  time       1.5s",
        "  last eval  round 6: train_loss 1.25, train_accuracy 0.875, test_loss 1.75, test_accuracy 0.75",
        "  created    2024-02-29T12:00:00+00:00 by fedmpi 9.9, run 0123456789abcdef",
        "  ranks      3 on node1, node2",
        "  devices    Some GPU, cpu; Some MPI 4.2",
        "  versions   python 3.11.0, torch 2.4.0",
        "  digests    data dddddddddddddddd, model eeeeeeeeeeeeeeee",
        "  tables     train 6, eval 3, participation 12, clients 7",
    ):
        assert expected in lines
    config = "\n".join(lines[lines.index("[run]") :])
    assert validate.parse(config, "printed") == validate.parse(attributes()["config"], "stored")


def test_info_of_a_running_run(tmp_path, capsys):
    """`info` of a run without an evaluation says how far it is, and leaves out what is not there."""
    path = tmp_path / "run.h5"
    writer = create_run(path)
    assert info(str(path)) == 0
    printed = capsys.readouterr().out
    assert "  status     running, 0 of 6 rounds\n" in printed
    assert "last eval" not in printed
    add_rounds(writer, 0, 4)
    writer.flush(0)
    info(str(path))
    assert "  status     running, 4 of 6 rounds\n  time       1.0s\n" in capsys.readouterr().out


def test_info_refuses_other_files(tmp_path, small_config):
    """`info` of a missing file, or of a config, is a UserError."""
    for path in (tmp_path / "missing.h5", small_config):
        with pytest.raises(UserError, match="run file"):
            info(str(path))


# fedmpi check.


def checked(capsys, config, *overrides: str, ranks: int = 1) -> str:
    """What `fedmpi check` prints."""
    assert check(str(config), overrides, ranks) == 0
    return capsys.readouterr().out


def test_check_prints_the_resolved_config(small_config, capsys):
    """`check` prints the resolved config, which is a config itself, and says that it is valid."""
    printed = checked(capsys, small_config, "run.seed=7")
    expected = validate.load(small_config, ["run.seed=7"])
    text = printed.partition(f"{small_config}: valid")[0]
    assert text != printed
    assert validate.parse(text, "printed") == expected


def test_check_tells_size_memory_and_communication(small_config, capsys):
    """`check` tells samples, parameters, ownership, memory and bytes per rank, as computed by hand."""
    printed = checked(capsys, small_config, "data.partition=iid", ranks=3)
    # 7 clients of 60 samples; 36 x 10 weights and 10 biases; 370 x 8 bytes are summed.
    # Samples: rank 0 has 180 and a third of 520 to evaluate, 36 + 8 bytes each: 354 x 44.
    # Vectors: five of 8 bytes; x, y and one update of 4 bytes: 370 x 52.
    for expected in (
        "synthetic: 420 train, 100 test samples of shape (1, 6, 6)",
        "logistic: 370 parameters",
        "owns clients r, r + 3, ...",
        "rank 0: 3 clients, 180 samples",
        "rank 1: 2 clients, 120 samples",
        "rank 2: 2 clients, 120 samples",
        "a rank: 15.6 kB of samples, 19.2 kB of vectors",
        "a round: 3.0 kB summed over ranks\n",
    ):
        assert expected in printed


def test_check_tells_what_amplification_sends(small_config, capsys):
    """Amplified updates are broadcast every P rounds: 8 x 370 / 5 bytes a round."""
    printed = checked(capsys, small_config, "algorithm.amplification=10", "algorithm.amplify_every=5")
    assert "a round: 3.0 kB summed over ranks, 592 B broadcast on average\n" in printed


def test_check_of_many_ranks_stays_short(small_config, capsys):
    """Of many ranks the first four are listed, and the fullest; ranks without clients do no harm."""
    printed = checked(capsys, small_config, "data.partition=iid", ranks=100)
    assert "rank 3: 1 clients, 60 samples\n               ... up to 60 samples on a rank" in printed
    assert "rank 4:" not in printed


SCHEDULE = "round,client,weight\n0,0,0.5\n0,1,0.5\n2,0,1.5\n"


def test_check_tells_who_takes_part(small_config, capsys):
    """`check` counts participants, absences and weights, as counted by hand."""
    schedule = small_config.with_name("schedule.csv")
    schedule.write_text(SCHEDULE)
    printed = checked(
        capsys, small_config, "participation.selection=schedule", f"participation.schedule={schedule}"
    )
    for expected in (
        "first 6 rounds: 0 to 2 clients a round (mean 0.5), 4 rounds without any",
        "2 of 7 clients seen, each 0 to 2 times; longest absence 6 rounds",
        "sum of weights q in a round: 0 to 1.5",
    ):
        assert expected in printed


def test_check_tells_periodic_absences(small_config, capsys):
    """Two groups that take turns of two rounds are away for two rounds each."""
    who = ("selection=all", "availability=periodic", "num_groups=2", "rounds_per_group=2")
    overrides = [f"participation.{key}" for key in who]
    printed = checked(capsys, small_config, "run.num_rounds=8", *overrides)
    assert "first 8 rounds: 3 to 4 clients a round (mean 3.5), 0 rounds without any" in printed
    assert "7 of 7 clients seen, each 4 to 4 times; longest absence 2 rounds" in printed
    assert "sum of weights q in a round: 1 to 1" in printed


def test_check_notes_keys_without_effect(small_config, capsys):
    """A key that this combination does not read is noted."""
    printed = checked(capsys, small_config, "data.alpha=0.5")
    assert "note: data.alpha has no effect" in printed
    assert "note:" not in checked(capsys, small_config)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.num_clients=500"], "clients have no samples"),
        (["model.name=cnn-fashion"], "takes samples of shape"),
        (["model.name=nowhere_to_be_found:f"], "importing nowhere_to_be_found"),
        (["data.dataset=missing.h5"], "no such file"),
        (["data.augment=true", "data.shape=[36]"], "crop and flip need"),
        (["participation.selection=schedule", "participation.schedule=missing.csv"], "missing.csv"),
    ],
)
def test_check_refuses_what_a_run_would_refuse(small_config, overrides, message):
    """What a run would refuse on its first node hours, `check` refuses at once."""
    with pytest.raises(UserError, match=message):
        check(str(small_config), overrides, 1)
