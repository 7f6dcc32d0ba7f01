"""How even a model is to clients: figures, `fedmpi plot --preset clients`, and the report's section."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

import fedmpi
from fedmpi.config import validate
from fedmpi.errors import UserError
from fedmpi.results.compare import first_difference
from fedmpi.results.fairness import fairness, jain, last_values, spread
from fedmpi.results.groups import group_runs
from fedmpi.results.plots.clients_figure import draw_clients
from fedmpi.results.report.page import make_page
from tests.support.configs import SMALL
from tests.support.run_files import INITIAL, add_rounds, create_run, finished_run

ACCURACIES = np.array([0.5, 0.25, 1.0, 0.75])


def run_with_clients(path: Path, *overrides: str, accuracies: np.ndarray = ACCURACIES) -> fedmpi.Run:
    """A run whose clients were evaluated at 0 and 6: all alike first, then with these accuracies."""
    writer = create_run(path, *overrides)
    add_rounds(writer, 0, 6)
    ids = np.arange(len(accuracies))
    for completed, right in ((0, np.full(len(ids), 0.125)), (6, accuracies)):
        writer.add("eval", completed, 1.0, 0.5, 1.0, 0.5, 0.25)
        writer.add("clients_eval", completed, ids, 0, ids + 1, 2 - right, right)
        writer.add("clients_eval", completed, ids[:2] + len(ids), 2, ids[:2] + 1, 3 - right[:2], right[:2])
    writer.flush(INITIAL + 10, status="done")
    return fedmpi.load_run(path)


def test_figures_by_hand(tmp_path):
    """Mean, spread, worst tenth and Jain's index of four clients, and of two that are held out."""
    table = fedmpi.fairness(run_with_clients(tmp_path / "a.h5")).set_index(["round", "part", "metric"])
    last = table.loc[(6, "train", "accuracy")]
    assert (last.clients, last["mean"], last["median"], last.worst, last.best) == (
        4,
        0.625,
        0.625,
        0.25,
        1.0,
    )
    assert last["std"] == pytest.approx(np.std([0.25, 0.5, 0.75, 1.0]))
    assert last.worst_decile == 0.25
    assert last.jain == pytest.approx(2.5**2 / (4 * 1.875))
    loss = table.loc[(6, "train", "loss")]
    assert (loss.worst, loss.best, loss.worst_decile) == (1.75, 1.0, 1.75)
    assert np.isnan(loss.jain)
    first = table.loc[(0, "held-out", "accuracy")]
    assert (first.clients, first["std"], first.jain) == (2, 0.0, 1.0)


def test_the_worst_tenth_is_rounded_up():
    """Of 21 clients three are the worst tenth, the smallest accuracies or the largest losses."""
    values = np.random.default_rng(0).permutation(21.0 * np.arange(21))
    assert spread(values, lower_is_better=False)["worst_decile"] == 21
    assert spread(values, lower_is_better=True)["worst_decile"] == 21 * 19


def test_the_order_of_clients_does_not_matter(tmp_path):
    """No figure changes by a bit if clients are numbered otherwise."""
    values = np.random.default_rng(1).random(37)
    turned = values[::-1].copy()
    assert spread(values, lower_is_better=False) == spread(turned, lower_is_better=False)


def test_jain_of_nobody():
    """If no client has anything right there is no evenness to speak of."""
    assert np.isnan(jain(np.zeros(3)))


def test_many_runs_as_one_table(tmp_path):
    """`load_runs` joins /clients_eval, and tells of runs that have none."""
    run_with_clients(tmp_path / "a.h5")
    finished_run(tmp_path / "b.h5")
    with pytest.warns(UserWarning, match="has no /clients_eval; run.eval_clients_every was 0"):
        table = fedmpi.load_runs(tmp_path, "clients_eval")
    assert len(table) == 2 * (4 + 2)
    assert table["part"].unique().tolist() == ["train", "held-out"]


def test_a_run_without_them_is_told(tmp_path):
    """Figures and picture of a run that did not look at its clients are refused, with the key to set."""
    run = fedmpi.load_run(finished_run(tmp_path / "a.h5"))
    assert run.clients_eval is None
    for look in (fairness, lambda run: draw_clients(group_runs([run]))):
        with pytest.raises(UserError, match=r"run\.eval_clients_every"):
            look(run)


def test_a_client_in_which_two_runs_differ_is_named(tmp_path):
    """`fedmpi diff` and `verify` look at each client's figures, bit for bit."""
    runs = [run_with_clients(tmp_path / f"{name}.h5") for name in "ab"]
    assert first_difference(*runs) is None
    other = run_with_clients(tmp_path / "c.h5", accuracies=ACCURACIES + np.array([0, 0, 1e-16 - 0.5, 0]))
    found = first_difference(runs[0], other)
    assert (found.round, found.text) == (6, "evaluation after round 6, train loss of client 2: 1.0 | 1.5")


def test_the_picture(tmp_path):
    """A row for each set; lines of mean and worst tenth, and all clients from worst to best, over seeds."""
    runs = [
        run_with_clients(tmp_path / "1.h5", "run.seed=1"),
        run_with_clients(tmp_path / "2.h5", "run.seed=2", accuracies=ACCURACIES / 2),
    ]
    figure = draw_clients(group_runs(runs))
    over_rounds, at_end, _, held_out = figure.axes
    mean, worst = over_rounds.get_lines()
    assert mean.get_ydata().tolist() == [12.5, 100 * 0.75 * 0.625]
    assert worst.get_ydata().tolist() == [12.5, 100 * 0.75 * 0.25]
    (line,) = at_end.get_lines()
    np.testing.assert_allclose(line.get_ydata()[[0, -1]], [75 * 0.25, 75 * 1.0])
    assert last_values(runs[0], "held-out", "accuracy").tolist() == [0.25, 0.5]
    assert len(held_out.get_lines()) == 1


def test_the_section_of_the_report(tmp_path):
    """A row for each group, set and metric; no section where no run has looked at its clients."""
    run = run_with_clients(tmp_path / "a.h5")
    page = make_page([run], [])
    section = page[page.index('<section id="clients">') :].partition("</section>")[0]
    assert section.count("<tr>") == 1 + 4
    assert section.count("<svg") == 4
    assert ">62.50</td>" in section
    plain = make_page([fedmpi.load_run(finished_run(tmp_path / "b.h5"))], [])
    assert '<section id="clients">' not in plain


def test_a_run_that_goes_on_has_the_same_rows(tmp_path):
    """Stopped between two evaluations, on the way to the next, and resumed."""
    config = validate.parse(SMALL, "small.toml", ["run.num_rounds=6", "run.eval_clients_every=2"])
    tables = tomllib.loads(config.to_toml())
    whole = fedmpi.run(tables, out=tmp_path / "whole.h5")
    stopped = fedmpi.run(tables, out=tmp_path / "cut.h5", on_round=lambda completed: completed == 2)
    assert sorted(stopped.clients_eval["round"].unique()) == [0, 2]
    resumed = fedmpi.resume(tmp_path / "cut.h5")
    assert resumed.clients_eval.equals(whole.clients_eval)
    assert sorted(resumed.clients_eval["round"].unique()) == [0, 2, 4, 6]
