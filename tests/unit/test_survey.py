"""What `fedmpi check` tells and draws of participation, compared with counts by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedmpi.cli.check import check
from fedmpi.errors import UserError
from fedmpi.participation.schedule import Schedule
from fedmpi.participation.survey import (
    AVAILABLE,
    AWAY,
    TAKING_PART,
    Survey,
    rounds_to_see,
    survey,
    survey_lines,
)
from fedmpi.results.plots.participation_figure import binned, plot_participation
from tests.unit.test_participation import make
from tests.unit.test_plots import figures  # noqa: F401  a fixture

# Round, client, weight: five clients, client 4 never comes, nobody in round 3.
ROWS = [(0, 0, 0.5), (0, 1, 0.5), (1, 0, 1.0), (2, 2, 0.25), (2, 3, 0.75), (4, 0, 1.0), (5, 1, 0.5)]


@pytest.fixture
def seen() -> Survey:
    """A survey of six rounds by windows of two."""
    columns = (np.array(column) for column in zip(*ROWS, strict=True))
    return survey(Schedule(*columns), 5, 6, 2)


def test_a_survey_counts_as_one_does_by_hand(seen):
    """Participants, weights, absences, returns and the share seen in each window."""
    assert seen.participants.tolist() == [2, 1, 2, 0, 1, 1]
    assert seen.weight_sums.tolist() == [1, 1, 1, 0, 1, 0.5]
    assert seen.square_sums.tolist() == [0.5, 1, 0.625, 0, 1, 0.25]
    assert seen.rho == 1
    assert seen.times.tolist() == [3, 2, 1, 1, 0]
    assert seen.gaps.tolist() == [0, 1, 0, 1, 0, 1, 0]  # client 0 after 1 and 3 rounds, client 1 after 5
    assert seen.longest_absence == 6  # client 4
    assert seen.seen_shares.tolist() == [0.4, 0.4, 0.4]
    assert seen.raster[:, 0].tolist() == [TAKING_PART, TAKING_PART, AWAY, AWAY, TAKING_PART, AWAY]


@pytest.mark.parametrize(
    ("rows", "longest"),
    [
        ([(0, 0), (5, 0)], 4),  # between
        ([(3, 0), (4, 0), (5, 0)], 3),  # at the start
        ([(0, 0), (1, 0)], 4),  # at the end
        ([(t, 0) for t in range(6)], 0),
    ],
)
def test_the_longest_absence_counts_rounds_without_the_client(rows, longest):
    """Also before its first round and after its last."""
    rounds, clients = (np.array(column) for column in zip(*rows, strict=True))
    assert survey(Schedule(rounds, clients, np.ones(len(rows))), 1, 6, 3).longest_absence == longest


@pytest.mark.parametrize(
    ("per_round", "rho"), [(1, 1.0), (4, 0.5), (16, 0.25)], ids=lambda value: str(value)
)
def test_rho_of_s_equal_weights_is_one_over_the_root_of_s(per_round, rho):
    """The paper's example."""
    participation = make(20, selection="uniform", clients_per_round=per_round)
    assert survey(participation, 20, 10, 1).rho == pytest.approx(rho)


def test_the_raster_tells_available_from_taking_part():
    """Groups of two of four clients, one taken: one takes part, one is available, two are away."""
    turns = {"availability": "periodic", "num_groups": 2, "rounds_per_group": 3}
    seen = survey(make(4, selection="permutation", clients_per_round=1, **turns), 4, 6, 6)
    for row in seen.raster:
        assert sorted(row.tolist()) == [AWAY, AWAY, AVAILABLE, TAKING_PART]
    assert seen.available.tolist() == [2] * 6
    assert seen.seen_shares.tolist() == [1.0]


def test_of_many_clients_some_are_drawn():
    """250 of 10,000, from the first to the last, and the right ones marked."""
    participation = make(10_000, availability="bernoulli", probability=0.3)
    seen = survey(participation, 10_000, 3, 1)
    assert (len(seen.sample), seen.sample[0], seen.sample[-1]) == (250, 0, 9999)
    for t in range(3):
        there = np.isin(seen.sample, participation.available(t))
        assert seen.raster[t].tolist() == (TAKING_PART * there).tolist()


@pytest.mark.parametrize(
    ("num_rounds", "num_clients", "window", "expected"),
    [
        (300_000, 250, 500, 2000),
        (300, 250, 500, 300),
        (300_000, 10**6, 1, 200),
        (300_000, 10**6, 500, 500),
        (300_000, 10**6, 50_000, 2000),
        (300_000, 10**10, 1, 1),
    ],
)
def test_a_survey_is_bounded(num_rounds, num_clients, window, expected):
    """At most 2,000 rounds, fewer of many clients, yet one window where it is not longer."""
    assert rounds_to_see(num_rounds, num_clients, window) == expected


def test_the_words(seen):
    """rho, absences and the share of clients seen in P rounds are printed."""
    text = "\n".join(survey_lines(seen))
    for expected in (
        "first 6 rounds: 0 to 2 clients a round (mean 1.2), 1 rounds without any",
        "4 of 5 clients seen, each 0 to 3 times; longest absence 6 rounds",
        "sum of weights q in a round: 0 to 1; rho 1 ",
        "seen in 2 rounds (P): 40.0 % of the clients, at least 40.0 %",
    ):
        assert expected in text
    longer = survey(make(5, selection="all"), 5, 6, 7)
    assert "seen in 7 rounds (P): unknown, only 6 rounds examined" in "\n".join(survey_lines(longer))


# --- The picture --------------------------------------------------------------------------------------


def test_joined_rounds_show_the_most_a_client_did():
    """Five rounds in columns of two, the last one short."""
    cells, size = binned(np.array([[0, 0], [2, 1], [1, 0], [0, 0], [1, 2]]), 3)
    assert size == 2
    assert cells.tolist() == [[2, 1], [1, 0], [1, 2]]
    cells, size = binned(np.eye(4, dtype=int), 4)
    assert size == 1
    assert cells.tolist() == np.eye(4).tolist()


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg"])
def test_check_draws_a_picture_when_asked(small_config, tmp_path, capsys, figures, suffix):  # noqa: F811
    """--plot writes the file; raster, counts and gaps are labelled and hold what was seen."""
    out = tmp_path / "new" / f"who{suffix}"
    assert check(str(small_config), ["run.num_rounds=40"], 1, str(out)) == 0
    assert out.stat().st_size > 5000
    assert f"picture        {out}\n" in capsys.readouterr().out
    [figure] = figures
    who, count, gap = figure.axes
    assert who.images[0].get_array().shape == (7, 40)
    assert sorted(np.unique(who.images[0].get_array()).tolist()) == [AVAILABLE, TAKING_PART]
    lines = {line.get_label(): set(line.get_ydata().tolist()) for line in count.get_lines()}
    assert lines == {"available": {7}, "taking part": {3}}
    assert sum(bar.get_height() for bar in gap.patches) == 40 * 3 - 7
    for axis in figure.axes:
        assert axis.get_xlabel()
        assert axis.get_ylabel()
        assert axis.get_title(loc="left")
    assert "7 clients, rho 0.577" in figure.get_suptitle()


@pytest.mark.parametrize(
    "who",
    [
        {"availability": "bernoulli", "probability": 0},
        {"selection": "uniform", "clients_per_round": 1},
        {"selection": "all"},
    ],
    ids=["nobody", "few of many", "all"],
)
def test_odd_participation_can_be_drawn(tmp_path, figures, who):  # noqa: F811
    """Nobody, one of many, everybody: a picture without a warning."""
    plot_participation(survey(make(100, **who), 100, 2, 1), "odd", str(tmp_path / "who.png"))
    assert len(figures) == 1


def test_gaps_are_all_drawn_when_they_are_long(tmp_path, figures):  # noqa: F811
    """Bars join gaps; none is lost, and each bar stands over its gaps."""
    seen = survey(make(300, selection="permutation", clients_per_round=1), 300, 700, 1)
    plot_participation(seen, "long", str(tmp_path / "who.png"))
    bars = figures[0].axes[2].patches
    assert sum(bar.get_height() for bar in bars) == 400
    assert len(bars) <= 60
    for bar in bars:
        first = round(bar.get_x() + 0.5)
        assert bar.get_height() == seen.gaps[first : first + round(bar.get_width())].sum()


def test_a_bad_name_for_the_picture_is_told_before_the_work(small_config, capsys):
    """Another format is refused with the accepted ones."""
    with pytest.raises(UserError, match=r"--plot who.jpg: format .jpg; accepted: \.png, \.pdf, \.svg"):
        check(str(small_config), [], 1, "who.jpg")
    assert capsys.readouterr().out == ""


def test_a_picture_that_cannot_be_written_is_a_user_error(small_config, tmp_path):
    """A file where a folder should be."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--plot .*who.png: cannot write there"):
        check(str(small_config), [], 1, str(tmp_path / "file" / "who.png"))


def test_the_command_line(fedmpi_cli, small_config, tmp_path):
    """`fedmpi check CONFIG --plot FIG.png`, with participation that depends on the labels."""
    who = ("availability=bernoulli", "probability_from=labels", "selection=all")
    sets = [part for pair in who for part in ("--set", f"participation.{pair}")]
    assert fedmpi_cli("check", small_config, "--plot", "who.png", *sets).returncode == 0
    assert (tmp_path / "who.png").read_bytes().startswith(b"\x89PNG")
