"""The HTML report: numbers, escaping, broken files; in headless Chromium where it is installed."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

import fedmpi
from fedmpi.results.groups import group_runs
from fedmpi.results.report import collect, sections
from fedmpi.results.report.page import make_page
from fedmpi.storage.files import replacing
from tests.support.run_files import create_run, finished_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def page_of(*paths, skipped=()) -> str:
    """The page of run files."""
    return make_page([fedmpi.load_run(path) for path in paths], list(skipped))


def data_of(page: str) -> dict:
    """The data for the page's script."""
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])


def two_groups(folder):
    """Two values of local_lr, two seeds each."""
    paths = []
    for lr in (0.5, 0.25):
        for seed in (1, 2):
            options = (f"run.seed={seed}", f"algorithm.local_lr={lr}")
            losses, accuracies = (2.0, 1.5, lr + seed), (0.125, 0.75, 0.5 + 0.125 * (seed - 1))
            path = finished_run(folder / f"{lr}-{seed}.h5", *options, losses=losses, accuracies=accuracies)
            paths.append(path)
    return paths


def test_groups_are_seeds_of_one_config(tmp_path):
    """Runs that differ by seed only belong together; groups are named by what differs."""
    groups = group_runs([fedmpi.load_run(path) for path in two_groups(tmp_path)])
    assert [group.label for group in groups] == ["local_lr 0.5", "local_lr 0.25"]
    assert [len(group.runs) for group in groups] == [2, 2]
    assert groups[0].values == {"algorithm.local_lr": 0.5}
    same = [fedmpi.load_run(finished_run(tmp_path / f"{name}.h5")) for name in "ab"]
    assert [group.label for group in group_runs(same)] == ["a", "b"]


@pytest.mark.parametrize(
    "names",
    [("x-seed1", "x-seed2"), ("x_seed-1_0123abcd", "x_seed-2_4567cdef"), ("x_0123abcd", "x_4567cdef")],
)
def test_seed_in_the_name_does_not_part_runs(tmp_path, names):
    """Names that differ by the seed, or by the digest that ends a sweep's long names, make one group."""
    runs = [
        fedmpi.load_run(finished_run(tmp_path / f"{s}.h5", f"run.seed={s}", name=f"{name}.toml"))
        for s, name in enumerate(names)
    ]
    assert [(group.label, len(group.runs)) for group in group_runs(runs)] == [("x", 2)]


def test_numbers_equal_the_files(tmp_path):
    """Mean and standard deviation over seeds, by hand; curves are the evaluations."""
    page = page_of(*two_groups(tmp_path))
    results = re.search(r'id="results".*?</table>', page, re.DOTALL)[0]
    assert "2.0000 ± 0.7071" in results  # train loss 1.5 and 2.5
    assert "56.25 ± 8.84" in results  # test accuracy 0.5 and 0.625
    assert "75.00 ± 0.00" in results  # the best
    curve = data_of(page)["runs"][0]["curve"]
    assert curve["round"] == [0, 3, 6]
    assert curve["train_loss"] == [2.0, 1.5, 1.5]
    assert curve["test_accuracy"] == [0.125, 0.75, 0.5]


def test_many_config_values_do_not_push_the_figures_out_of_sight(tmp_path):
    """Up to three values that differ have a column beside the figures; more stand in the config's table."""
    keys = [
        "algorithm.local_lr=0.5",
        "algorithm.local_steps=3",
        "algorithm.batch_size=4",
        "data.similarity=0.5",
    ]
    for count, has_columns in ((3, True), (4, False)):
        paths = [finished_run(tmp_path / f"{count}-{k}.h5", *keys[: k * count]) for k in (0, 1)]
        page = page_of(*paths)
        results = re.search(r'id="results".*?</thead>', page, re.DOTALL)[0]
        assert ("local_steps" in results) == has_columns
        assert "local_steps" in page.split('id="results"')[1]


def test_long_curves_are_thinned(tmp_path):
    """At most 1,000 points, the first and last among them; a sparse training curve keeps its values."""
    losses = np.linspace(3, 1, 5000)
    path = finished_run(tmp_path / "a.h5", losses=losses, accuracies=losses / 4)
    with replacing(path, copy=True) as file:
        sparse = np.where(np.arange(5000) % 50 == 0, losses, np.nan)
        file["eval/train_loss"][...] = sparse
    curve = collect.curve(fedmpi.load_run(path))
    assert len(curve["round"]) == 1000
    assert curve["test_accuracy"][0] == 0.75
    assert curve["test_accuracy"][-1] == 0.25
    assert sum(value is not None for value in curve["train_loss"]) == 100


def test_everything_from_files_is_escaped(tmp_path):
    """Names, paths and attributes cannot become elements or end the data."""
    evil = "</script><img src=x onerror=alert(1)>"
    path = finished_run(tmp_path / "a.h5", f"run.name={json.dumps(evil)}")
    with replacing(path, copy=True) as file:
        file.attrs["creator"] = evil
        file.attrs["versions"] = json.dumps({evil: evil})
        file.attrs["phases"] = json.dumps([{evil: 1.0, "in all": 2.0, "memory_mb": 3.0}])
    page = page_of(path, skipped=[evil])
    assert "<img" not in page
    assert html.escape(evil) in page


def test_warnings(tmp_path):
    """Diverged, stopped and running runs, subsets, no evaluations and broken files are told."""
    for status in ("diverged", "stopped"):
        path = finished_run(tmp_path / f"{status}.h5", name=f"{status}.toml")
        with replacing(path, copy=True) as file:
            file.attrs["status"] = status
    create_run(tmp_path / "begun.h5", name="begun.toml")
    finished_run(tmp_path / "subset.h5", "run.eval_train_samples=50", name="subset.toml")
    page = page_of(*sorted(tmp_path.iterdir()), skipped=["run file x.h5: no such file"])
    warnings = re.search(r'id="warnings".*?</section>', page, re.DOTALL)[0]
    for text in ("diverged after 6 of 6", "stopped after 6 of 6", "still running", "no evaluation yet",
                 "subset of 50 samples", "x.h5: no such file"):  # fmt: skip
        assert text in warnings


def test_phases_of_each_rank(tmp_path):
    """Seconds by phase, with the rest as other; phases of another version are left out."""
    path = finished_run(tmp_path / "a.h5")
    with replacing(path, copy=True) as file:
        file.attrs["phases"] = '[{"local SGD": 3.0, "idle": 1.0, "in all": 6.0, "memory_mb": 10.0}]'
    (rank,) = collect.phases(fedmpi.load_run(path))
    assert rank["other"] == 2.0
    assert rank["device_memory_mb"] == 0.0
    assert "GPU memory" not in sections.timing(group_runs([fedmpi.load_run(path)]))
    with replacing(path, copy=True) as file:  # memory is not a phase
        file.attrs["phases"] = (
            '[{"local SGD": 4.0, "in all": 6.0, "memory_mb": 10.0, "device_memory_mb": 5000.0}]'
        )
    (rank,) = collect.phases(fedmpi.load_run(path))
    assert rank["other"] == 2.0
    text = sections.timing(group_runs([fedmpi.load_run(path)]))
    assert "GPU memory MB" in text
    assert "5,000" in text
    assert "device_memory_mb" not in text
    with replacing(path, copy=True) as file:
        file.attrs["phases"] = '{"a": 1}'
    assert collect.phases(fedmpi.load_run(path)) == []


def test_participation_counts(tmp_path):
    """Clients t % 7 and (t + 3) % 7 take part in six rounds: five of them twice."""
    run = fedmpi.load_run(finished_run(tmp_path / "a.h5"))
    pictures, which = collect.participation_pictures(group_runs([run]))
    assert which == [0]
    assert pictures[0]["often"] == [2, 2, 1, 2, 2, 2, 1]
    assert (pictures[0]["least"], pictures[0]["most"], pictures[0]["never"]) == (1, 2, 0)


def test_command(tmp_path, fedmpi_cli):
    """A report of a folder with a broken file is written; it loads nothing from the network."""
    (tmp_path / "runs").mkdir()
    two_groups(tmp_path / "runs")
    (tmp_path / "runs" / "half.h5").write_bytes((tmp_path / "runs" / "0.5-1.h5").read_bytes()[:900])
    done = fedmpi_cli("report", "runs", "--out", "new/report.html")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "new/report.html: 4 run(s)\n"
    assert "left out" in done.stderr
    page = (tmp_path / "new" / "report.html").read_text()
    assert "half.h5" in page
    assert not re.search(r'(src|href)="(?!data:)', page)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.h5", "--out", "r.html"], "no such file"),
        ([".", "--out", "r.html"], "no .h5 file"),
        (["nowhere.h5", "--out", "r.pdf"], "accepted: .html"),
    ],
)
def test_bad_input_is_a_sentence_and_status_2(fedmpi_cli, arguments, message):
    """No file, no run in a folder, another format."""
    done = fedmpi_cli("report", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


# In a browser.

WATCH = '<script>window.errors=[];addEventListener("error",(e)=>errors.push(String(e.message)));</script>'
ACT = """<script>
const seen = {}, click = (e) => e.click(), lines = (u) => u.series.slice(1).filter((s) => !s.isEdge).length;
const column = (id, n) => [...$(id).tBodies[0].rows].map((r) => r.cells[n].textContent);
seen.charts = charts.map((u) => u.metric); seen.lines = lines(charts[0]);
seen.mean = charts[0].data[1];
click($("means")); seen.runLines = lines(charts[0]);
seen.values = charts[1].data[1];
click($("legend").querySelector("input")); seen.afterGroupOff = lines(charts[0]);
click($("all"));
click($("legend").querySelector("details input")); seen.afterSeedOff = lines(charts[0]);
click($("none")); seen.afterNone = charts.length ? lines(charts[0]) : 0; click($("all"));
click(document.querySelector("[data-metric=test_loss]")); seen.chartsAfter = charts.map((u) => u.metric);
click($("log")); seen.log = charts[0].scales.y.distr;
$("smooth").value = 20; $("smooth").dispatchEvent(new Event("input"));
seen.smooth = $("smooth-text").textContent;
seen.before = column("results", 0);
click(document.querySelector("#results th:nth-child(2) button")); seen.sorted = column("results", 0);
click(document.querySelector("#results th:nth-child(2) button")); seen.reversed = column("results", 0);
const theme = document.documentElement.dataset.theme; click($("theme"));
seen.theme = theme !== document.documentElement.dataset.theme;
charts[0].setScale("x", {min: 1, max: 4});
seen.who = $("who-text").textContent;
setTimeout(() => {
  seen.zoomed = [charts[0].scales.x.min, charts[0].scales.x.max];
  // Hover over the first curve's second point.
  const u = charts[0], place = u.over.getBoundingClientRect();
  const clientX = place.left + u.valToPos(3, "x"), clientY = place.top + u.valToPos(u.data[1][1], "y");
  for (const kind of ["mouseenter", "mousemove", "mousemove"])
    u.over.dispatchEvent(new MouseEvent(kind, { clientX, clientY, bubbles: true }));
  seen.tip = document.querySelector(".tip").textContent;
  seen.errors = errors;
  const out = document.createElement("pre"); out.id = "seen"; out.textContent = JSON.stringify(seen);
  document.body.append(out);
}, 200);
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")
def test_in_a_browser(tmp_path):
    """The page loads without an error; toggles, zoom, sorting and theme work; numbers are the files'."""
    page = page_of(*two_groups(tmp_path))
    page = page.replace("<head>", "<head>" + WATCH).replace("</body>", ACT)
    (tmp_path / "page.html").write_text(page)
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000",
         f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", (tmp_path / "page.html").as_uri()],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    seen = json.loads(html.unescape(found[1]))
    assert seen["errors"] == []
    assert seen["charts"] == ["train_loss", "test_accuracy"]
    assert seen["mean"] == [2.0, 1.5, 2.0]
    assert seen["values"] == [12.5, 75.0, 50.0]
    assert (seen["lines"], seen["runLines"]) == (2, 4)
    assert (seen["afterGroupOff"], seen["afterSeedOff"], seen["afterNone"]) == (2, 3, 0)
    assert seen["chartsAfter"] == ["train_loss", "test_loss", "test_accuracy"]
    assert seen["log"] == 3
    assert seen["smooth"] == "20 % of points"
    assert seen["sorted"] == ["local_lr 0.25", "local_lr 0.5"] == seen["reversed"][::-1]
    assert seen["theme"] is True
    assert seen["zoomed"] == [1, 4]
    assert re.fullmatch(r"local_lr [\d.]+, seed \d: 1.5 at round 3", seen["tip"])
    assert seen["who"] == "7 clients; each took part 1 to 2 times"
