"""fedmpi from Python, in one process: bits and words of the command line, and nothing left behind."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedmpi
from fedmpi.__main__ import main
from fedmpi.config import validate
from fedmpi.data.prepared import Dataset
from fedmpi.errors import ConfigError, UserError
from fedmpi.experiments import api
from fedmpi.methods import Method
from fedmpi.results.compare import first_difference
from tests.support.configs import SMALL
from tests.support.simulations import run_to_file

CONFIG = tomllib.loads(SMALL)
ROUNDS = CONFIG["run"]["num_rounds"]
quiet_run = functools.partial(fedmpi.run, progress=False)


def tiny_net(input_shape, num_classes):
    """A model that this module offers to others."""
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), num_classes))


def _signal(number: int) -> None:
    """To this process."""
    os.kill(os.getpid(), number)


def own_function(body: str, name: str = "own"):
    """A function that no other process can import, as one of a notebook."""
    space: dict = {}
    exec(body, {"__name__": "__main__", "nn": nn, "np": np}, space)
    return space[name]


@pytest.fixture
def whole(tmp_path) -> fedmpi.Run:
    """The small experiment by the service underneath."""
    return run_to_file(validate.parse(SMALL, "small.toml"), tmp_path / "whole.h5")


# --- run ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["dict", "path"])
def test_run_gives_the_bits_of_the_command(whole, small_config, form):
    """A dict, a file and the command line are the same experiment."""
    run = quiet_run(CONFIG if form == "dict" else small_config)
    assert run.status == "done"
    assert first_difference(run, whole) is None


def test_without_out_nothing_is_left(tmp_path, monkeypatch):
    """Neither in the working directory nor in the folder for temporary files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    quiet_run(CONFIG)
    assert list(tmp_path.iterdir()) == []


def test_without_out_there_are_no_checkpoints(monkeypatch):
    """Other nodes do not see rank 0's temporary folder, so no rank writes its clients' tables there."""
    for name in ("write_checkpoint", "write_part"):
        monkeypatch.setattr(f"fedmpi.experiments.result_file.{name}", lambda *a: pytest.fail("written"))
    settings = {"algorithm.name": "scaffold", "run.checkpoint_every": 2}
    assert quiet_run(CONFIG, settings).status == "done"


def test_out_is_a_result_file_and_is_not_overwritten(tmp_path):
    """`out` is what `fedmpi run --out` writes; a second run needs force."""
    path = tmp_path / "new" / "a.h5"
    run = quiet_run(CONFIG, out=path)
    assert run.path == path
    assert first_difference(fedmpi.load_run(path), run) is None
    with pytest.raises(UserError, match=r"^out=.*a.h5.*fedmpi.resume\(.*a.h5.\).*force=True"):
        quiet_run(CONFIG, out=path)
    assert quiet_run(CONFIG, {"run.seed": 2}, path, force=True).config["run"]["seed"] == 2


def test_overrides_take_python_values():
    """Numbers of numpy, tuples and paths are as good as plain ones."""
    settings = {
        "algorithm.local_lr": np.float64(0.25),
        "run.num_rounds": np.int64(2),
        "model.name": "mlp",
        "model.hidden": (5, 4),
        "data.root": Path("somewhere"),
    }
    config = quiet_run(CONFIG, settings).config
    assert config["algorithm"]["local_lr"] == 0.25
    assert config["run"]["num_rounds"] == 2
    assert config["model"]["hidden"] == [5, 4]
    assert config["data"]["root"] == "somewhere"


def test_several_runs_in_one_process_do_not_touch_each_other(whole):
    """A run with another method, model and precision between two equal ones changes nothing."""
    quiet_run(CONFIG, {"algorithm.name": "scaffold", "run.dtype": "float64", "run.seed": 7})
    assert first_difference(quiet_run(CONFIG), whole) is None


def test_torch_is_left_as_it_was():
    """Threads and flags of the caller's torch are restored, also after an error."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        quiet_run(CONFIG, {"run.num_rounds": 1})
        assert torch.get_num_threads() == 2
        with pytest.raises(UserError):
            quiet_run(CONFIG, {"run.device": "cuda"})
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_all_settings_of_torch_are_left_as_they_were():
    """Also those that only a GPU needs, and tiny numbers, which torch sets but does not tell."""
    from fedmpi.mpi.device import _flushes_tiny_numbers, settings_restored

    settings = (
        torch.get_num_threads, _flushes_tiny_numbers, torch.are_deterministic_algorithms_enabled,
        torch.is_deterministic_algorithms_warn_only_enabled, lambda: torch.backends.cudnn.benchmark,
        lambda: torch.backends.cudnn.allow_tf32, lambda: torch.backends.cuda.matmul.allow_tf32,
        lambda: torch.utils.deterministic.fill_uninitialized_memory,
    )  # fmt: skip
    with settings_restored():
        for flag in (True, False):
            torch.set_flush_denormal(flag)
            torch.use_deterministic_algorithms(True, warn_only=flag)
            torch.backends.cudnn.benchmark = flag
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = flag
            torch.utils.deterministic.fill_uninitialized_memory = flag
            before = [setting() for setting in settings]
            with settings_restored():
                torch.set_flush_denormal(not flag)
                torch.use_deterministic_algorithms(not flag)
                torch.backends.cudnn.benchmark = not flag
                torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = not flag
                torch.utils.deterministic.fill_uninitialized_memory = not flag
                assert [setting() for setting in settings] != before
            assert [setting() for setting in settings] == before


def test_signal_handlers_are_left_as_they_were():
    """A run listens to signals only while it goes on."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    quiet_run(CONFIG, {"run.num_rounds": 1})
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)] == before


def test_importing_loads_neither_torch_nor_mpi():
    """`import fedmpi` starts nothing; the names are there all the same."""
    code = (
        "import sys, fedmpi; names = dir(fedmpi); "
        "assert {'run', 'resume', 'sweep', 'check', 'advise'} <= set(names); "
        "bad = {'torch', 'mpi4py', 'mpi4py.MPI'} & set(sys.modules); sys.exit(str(bad) if bad else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- Errors are exceptions ----------------------------------------------------------------------------


def test_a_bad_config_is_an_exception_with_the_words_of_the_command_line(tmp_path, capsys):
    """The same report, and the place of an override is named as such."""
    path = tmp_path / "bad.toml"
    path.write_text(SMALL.replace("num_rounds", "num_round"))
    with pytest.raises(SystemExit):
        main(["check", str(path)])
    printed = capsys.readouterr().err
    with pytest.raises(ConfigError) as caught:
        quiet_run(path)
    assert printed == f"fedmpi: error: {caught.value}\n"
    with pytest.raises(ConfigError, match=r"local_lr = -1.0: expected a number > 0 \(overrides\)"):
        quiet_run(CONFIG, {"algorithm.local_lr": -1})


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"overrides": {"local_lr": 1}}, "overrides local_lr=1: expected section.key=value"),
        ({"overrides": {"run.seed": object()}}, "expected a number, a string, a list or a table"),
        ({"config": {"run": 3}}, r"config run = 3: expected a section \[run\]"),
        ({"config": "nowhere.toml"}, "config nowhere.toml: no such file"),
        ({"config": 5}, "config = 5: expected a TOML file, or a dict of its sections"),
        ({"config": {"run.num_rounds": {"a": 1}}}, "config run.num_rounds: unknown section"),
        ({"config": {"run": {"num_rounds": [None]}}}, r"config run.num_rounds = None: .*leave the key out"),
        ({"overrides": ["run.seed=2"]}, r"overrides = \['run.seed=2'\]: expected a dict"),
        ({"overrides": {"run.seed": None}}, "config run.seed = None: .*leave the key out for its default"),
        ({"out": ""}, "out = '': expected the name of a file"),
        ({"out": 3}, "out = 3: expected the name of a file"),
    ],
)
def test_mistakes_in_python_are_user_errors(arguments, expected):
    """What cannot be a config is named, never a traceback from inside."""
    with pytest.raises(UserError, match=expected):
        quiet_run(**{"config": CONFIG} | arguments)


def test_an_unknown_argument_is_a_type_error():
    """As in any Python function."""
    with pytest.raises(TypeError, match=r"'modle'; objects are model, participation, method"):
        quiet_run(CONFIG, modle=tiny_net)


def test_divergence_is_a_status_and_a_warning():
    """A run that diverges returns what it has."""
    with pytest.warns(UserWarning, match=r"diverged in round \d+: client \d+"):
        run = quiet_run(CONFIG, {"algorithm.local_lr": 1e30, "model.name": "mlp"})
    assert run.status == "diverged"


# --- Callbacks and stopping ---------------------------------------------------------------------------


def test_callbacks_see_all_that_is_stored():
    """Each row of /eval, each round."""
    rows, rounds = [], []
    run = quiet_run(CONFIG, on_evaluation=rows.append, on_round=rounds.append)
    assert [row["round"] for row in rows] == run.eval["round"].tolist()
    assert [row["train_loss"] for row in rows] == run.eval.train_loss.tolist()
    assert rounds == list(range(ROUNDS + 1))


def test_a_callback_stops_the_run_and_resume_completes_it(whole, tmp_path):
    """A true answer ends the run with a checkpoint; what goes on has the bits of a run in one go."""
    path = tmp_path / "a.h5"
    stopped = quiet_run(CONFIG, out=path, on_round=lambda completed: completed == 1)
    assert stopped.status == "stopped"
    assert len(stopped.train) == 2  # agreed upon with the next round
    run = fedmpi.resume(path, progress=False)
    assert run.status == "done"
    assert first_difference(run, whole) is None


def test_a_callback_that_fails_ends_the_run_with_its_exception(tmp_path):
    """The exception is the user's own, and what was done is kept."""
    path = tmp_path / "a.h5"

    def fail(completed: int) -> None:
        if completed == 1:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        quiet_run(CONFIG, out=path, on_round=fail)
    assert fedmpi.load_run(path).status == "stopped"


def test_ctrl_c_keeps_what_was_done(tmp_path):
    """KeyboardInterrupt, with a checkpoint and the words to go on."""
    path = tmp_path / "a.h5"
    with pytest.raises(KeyboardInterrupt, match=r"stopped after round 2; go on with fedmpi.resume"):
        quiet_run(CONFIG, out=path, on_round=lambda n: n == 1 and _signal(signal.SIGINT))
    assert len(fedmpi.load_run(path).train) == 2


def test_ctrl_c_in_the_last_round_is_not_lost(tmp_path):
    """The run is complete, and the program is interrupted all the same."""
    path = tmp_path / "a.h5"
    with pytest.raises(KeyboardInterrupt, match=f"stopped after round {ROUNDS}$"):
        quiet_run(CONFIG, out=path, on_round=lambda n: n == ROUNDS and _signal(signal.SIGINT))
    assert fedmpi.load_run(path).status == "done"


def test_ctrl_c_outside_the_rounds_reaches_the_handler_before(monkeypatch):
    """While results are read back, nobody asks for signals any more: they are delivered afterwards."""
    heard, whole = [], api._conclude
    monkeypatch.setattr(api, "_conclude", lambda *a: (whole(*a), _signal(signal.SIGUSR1)))
    before = signal.signal(signal.SIGUSR1, lambda *a: heard.append("heard"))
    try:
        assert quiet_run(CONFIG).status == "done"
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == ["heard"]


def test_a_second_ctrl_c_does_not_wait():
    """The first one asks for the end of the round; who cannot wait for it presses again."""
    begun = []

    def pressed_twice(completed: int) -> None:
        begun.append(completed)
        if completed == 1:
            _signal(signal.SIGINT)
            _signal(signal.SIGINT)  # the same one, delivered twice by a launcher
            time.sleep(0.6)
            _signal(signal.SIGINT)
            begun.append("waited")

    with pytest.raises(KeyboardInterrupt):
        quiet_run(CONFIG, on_round=pressed_twice)
    assert begun == [0, 1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1], ids=["TERM", "USR1"])
def test_other_signals_end_the_program_with_a_checkpoint(tmp_path, number):
    """With the status that batch scripts requeue on, and the words to go on."""
    path = tmp_path / "a.h5"
    with (
        pytest.warns(UserWarning, match=r"stopped after round 2; go on with fedmpi.resume.*: signal"),
        pytest.raises(SystemExit) as caught,
    ):
        quiet_run(CONFIG, out=path, on_round=lambda n: n == 1 and _signal(number))
    assert caught.value.code == 75
    assert fedmpi.resume(path, progress=False).status == "done"


def test_a_time_limit_is_a_status_and_a_warning(tmp_path):
    """What was done is returned."""
    with pytest.warns(UserWarning, match=r"stopped after round 1: the time limit is near; go on with"):
        run = quiet_run(CONFIG, {"run.max_minutes": 1e-9}, tmp_path / "a.h5")
    assert run.status == "stopped"


def test_a_callback_may_run_another_simulation(whole):
    """Neither run touches the other."""
    inner = []
    run = quiet_run(CONFIG, on_round=lambda n: n == 2 and inner.append(quiet_run(CONFIG)))
    assert first_difference(run, whole) is None
    assert first_difference(inner[0], whole) is None


def test_another_thread_is_refused(whole):
    """Objects, signals and MPI belong to the process; the call that was first is not disturbed."""
    refused = []

    def call() -> None:
        with pytest.raises(UserError, match=r"fedmpi.run: another thread .* use fedmpi.sweep"):
            quiet_run(CONFIG)
        refused.append(True)

    def from_another_thread(completed: int) -> None:
        if completed == 2:
            thread = threading.Thread(target=call)
            thread.start()
            thread.join()

    assert first_difference(quiet_run(CONFIG, on_round=from_another_thread), whole) is None
    assert refused


def test_what_a_killed_program_left_is_removed_by_the_next(tmp_path, monkeypatch):
    """A folder of a process that is no more; not that of one that lives, nor anything else."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = [f"fedmpi-{ended.pid}-abc", f"fedmpi-{os.getpid()}-abc", "fedmpi-my-own"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.h5").touch()
    quiet_run(CONFIG, {"run.num_rounds": 1})
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])


def test_progress_is_shown_or_not(capsys):
    """On stderr, and not at all with progress=False."""
    quiet_run(CONFIG)
    assert capsys.readouterr() == ("", "")
    fedmpi.run(CONFIG)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"{ROUNDS}/{ROUNDS} rounds" in captured.err


# --- Python objects -----------------------------------------------------------------------------------


class Halved(Method):
    """Half of what FedAvg adds."""

    def direction(self, state, round):
        """A half."""
        return 0.5 * round.sums["weighted_sum"], {}


def test_objects_take_the_place_of_names():
    """A model, who takes part, a method, a partition and a data set of the caller's own."""
    rng = np.random.default_rng(1)
    data = Dataset("mine", rng.random((60, 4)).astype("f4"), np.arange(60) % 3, np.zeros((3, 4), "f4"),
                   np.arange(3), 3)  # fmt: skip
    plain = {
        "run": {"num_rounds": 4},
        "data": {"dataset": "fashion-mini", "num_clients": 6},
        "model": {"name": "logistic"},
        "algorithm": {"local_lr": 0.1, "local_steps": 2, "batch_size": 4},
    }
    objects = {
        "dataset": data,
        "model": lambda input_shape, num_classes: nn.Linear(4, 3),
        "participation": lambda t: [t % 2, 4],
        "partition": lambda labels, num_clients: np.arange(len(labels)) // 10,
        "method": Halved,
    }
    run = quiet_run(plain, **objects)
    assert run.participation.client.tolist() == [0, 4, 1, 4] * 2
    assert run.clients["size"].tolist() == [10] * 6
    assert list(run.parameters()) == ["weight", "bias"]
    whole = quiet_run(plain, **{k: v for k, v in objects.items() if k != "method"})
    norms = run.train.weighted_sum_norm.iloc[0], whole.train.weighted_sum_norm.iloc[0]
    assert norms[0] == norms[1]
    assert run.eval.train_loss.iloc[0] == whole.eval.train_loss.iloc[0]
    assert run.eval.train_loss.iloc[-1] != whole.eval.train_loss.iloc[-1]


def test_a_string_is_a_name(whole):
    """As in the config, built in or importable."""
    assert first_difference(quiet_run(CONFIG, {"model.name": "mlp"}, model="logistic"), whole) is None
    named = quiet_run(CONFIG, {"run.num_rounds": 1}, model=f"{__name__}:tiny_net")
    assert named.config["model"]["name"] == f"{__name__}:tiny_net"


def test_a_module_is_a_model_too():
    """An instance starts every run from its own parameters and is not changed."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 10))
    before = module[1].weight.detach().clone()
    first, second = (quiet_run(CONFIG, model=module) for _ in range(2))
    assert torch.equal(module[1].weight, before)
    assert first_difference(first, second) is None


def test_an_importable_object_stands_by_its_name(tmp_path):
    """Then the command line goes on with it as with any config that names it."""
    path = tmp_path / "a.h5"
    quiet_run(CONFIG, {"run.num_rounds": 2}, path, model=tiny_net)
    assert fedmpi.load_run(path).config["model"]["name"] == f"{__name__}:tiny_net"
    assert len(fedmpi.resume(path, {"run.num_rounds": 3}, progress=False).train) == 3


def test_a_passed_object_is_needed_again_to_go_on(tmp_path, capsys):
    """The file has its source; neither the command line nor another object goes on with it."""
    path = tmp_path / "a.h5"
    body = "def own(t, num_clients):\n    return [t % num_clients]\n"
    own = own_function(body)
    stopped = quiet_run(CONFIG, out=path, participation=own, on_round=lambda n: n == 1)
    assert stopped.config["participation"]["availability"] == "__python__:own"
    with pytest.raises(SystemExit) as caught:
        main(["resume", str(path)])
    assert caught.value.code == 2
    assert f"fedmpi.resume({str(path)!r}, participation=own)" in capsys.readouterr().err
    with pytest.raises(UserError, match="only that program has"):
        fedmpi.resume(path, progress=False)
    other = own_function("def own(t, num_clients, seed):\n    return [0]\n")
    with pytest.raises(UserError, match='the source of "own"'):
        fedmpi.resume(path, participation=other, progress=False)
    run = fedmpi.resume(path, participation=own, progress=False)
    assert first_difference(run, quiet_run(CONFIG, participation=own)) is None


def test_objects_for_a_run_that_was_begun_with_others_are_refused(tmp_path):
    """They would not be used: better no run than one that is not what it seems."""
    path = tmp_path / "a.h5"
    quiet_run(CONFIG, {"run.num_rounds": 2}, path)
    longer = {"run.num_rounds": 3}
    with pytest.raises(UserError, match=r'method: was given as ".*:Halved", but .* = "fedavg"'):
        fedmpi.resume(path, longer, method=Halved, progress=False)
    with pytest.raises(UserError, match=r'model: was given as "mlp", but .* model.name = "logistic"'):
        fedmpi.resume(path, longer, model="mlp", progress=False)
    assert len(fedmpi.resume(path, longer, model="logistic", progress=False).train) == 3


def test_a_config_cannot_name_an_object_that_nobody_passed():
    """Such a name means nothing elsewhere, and says what to do."""
    with pytest.raises(UserError, match=r"pass it again, as in fedmpi.run\(..., model=Net\)"):
        quiet_run(CONFIG, {"model.name": "__python__:Net"})


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        ({"model": lambda: 3}, "returned int; expected torch.nn.Module"),
        ({"model": nn.Linear(3, 3)}, r"on a sample of shape \(1, 6, 6\) it raised RuntimeError"),
        ({"model": nn.Flatten()}, "has no parameters to train"),
        ({"model": nn.Sequential(nn.Flatten(), nn.Linear(36, 7))}, "returned 7 numbers; expected 10"),
        ({"participation": lambda t: [99]}, "returned client 99; expected 0 to"),
        ({"participation": lambda t: 1 / 0}, "round 0 raised ZeroDivisionError"),
        ({"method": tiny_net}, "expected a class derived from fedmpi.methods.Method"),
        ({"partition": lambda labels: labels - 1}, "returned clients from -1 to 8"),
        ({"partition": lambda labels: labels[:3]}, r"returned an array of shape \(3,\)"),
        ({"participation": [1, 2]}, "participation = list: expected a function, a class"),
        ({"dataset": 3}, "returned int; expected fedmpi.data.prepared.Dataset"),
        ({"dataset": lambda: [1, 2]}, "returned list; expected fedmpi.data.prepared.Dataset"),
    ],
)
def test_an_object_that_does_not_fit_is_named(objects, expected):
    """Each kind, with what was expected."""
    with pytest.raises(UserError, match=expected):
        quiet_run(CONFIG, **objects)


# --- resume, sweep, check, advise ---------------------------------------------------------------------


def test_resume_lengthens_a_run_and_leaves_a_finished_one(tmp_path):
    """`overrides` as on the command line; what may not change is refused in the same words."""
    path = tmp_path / "a.h5"
    done = quiet_run(CONFIG, out=path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert first_difference(fedmpi.resume(path, progress=False), done) is None
    with pytest.raises(UserError, match=r"overrides algorithm.local_lr=0.5: cannot change"):
        fedmpi.resume(path, {"algorithm.local_lr": 0.5}, progress=False)
    longer = fedmpi.resume(path, {"run.num_rounds": ROUNDS + 2}, progress=False)
    assert first_difference(longer, quiet_run(CONFIG, {"run.num_rounds": ROUNDS + 2})) is None


def test_sweep_gives_the_table_of_all_runs(tmp_path):
    """A dict like a sweep file; each run has the bits of the run alone; a second call does nothing."""
    plan = {"base": CONFIG, "seeds": [1, 2], "grid": {"algorithm.local_lr": [0.1, 0.01]}}
    table = fedmpi.sweep(plan, tmp_path / "all", progress=False)
    assert table.groupby(["algorithm.local_lr", "seed"]).ngroups == 4
    alone = quiet_run(CONFIG, {"algorithm.local_lr": 0.01, "run.seed": 2})
    mine = table[(table["algorithm.local_lr"] == 0.01) & (table.seed == 2)]
    assert mine.train_loss.tolist() == alone.eval.train_loss.tolist()
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "all").glob("*.h5")}
    assert len(times) == 4
    assert fedmpi.sweep(plan, tmp_path / "all", progress=False).equals(table)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "all").glob("*.h5")} == times


def test_sweep_refuses_what_another_object_made(tmp_path):
    """Results that a function of another source made are not passed off as those of this one."""
    plan, folder = {"base": CONFIG, "seeds": range(1, 3)}, tmp_path / "all"
    first = own_function("def own(t):\n    return [0, 1]\n")
    table = fedmpi.sweep(plan, folder, participation=first, progress=False)
    assert fedmpi.sweep(plan, folder, participation=first, progress=False).equals(table)
    other = own_function("def own(t):\n    return [0, 2]\n")
    with pytest.raises(UserError, match=r'the source of "own" .* choose another folder') as caught:
        fedmpi.sweep(plan, folder, participation=other, progress=False)
    assert "trust" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("base = \n", "not valid TOML"),
        ("seeds = [1]\n", "sweep base: expected the name of a config file"),
    ],
)
def test_a_bad_sweep_file_is_named_also_with_objects(tmp_path, text, expected):
    """Whoever reads the file, the report is the same."""
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    for objects in ({}, {"model": tiny_net}):
        with pytest.raises(ConfigError, match=expected):
            fedmpi.sweep(path, progress=False, **objects)


def test_sweep_without_a_folder_and_with_objects(tmp_path, small_config, monkeypatch):
    """A sweep file, a model of the caller's own, and nothing left on disk."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "tmp").mkdir()
    path = tmp_path / "sweep.toml"
    path.write_text(f'base = "{small_config.name}"\nseeds = [1, 2]\n')
    table = fedmpi.sweep(path, model=own_function("def own():\n    return nn.Sequential(nn.Flatten(), "
                                                  "nn.Linear(36, 10))\n"), progress=False)  # fmt: skip
    assert set(table["model.name"]) == {"__python__:own"}
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_sweep_whose_runs_fail_is_an_error_that_names_them(tmp_path):
    """The others are done first."""
    plan = {"base": CONFIG, "grid": {"model.name": ["logistic", "nowhere:net"]}}
    with pytest.raises(UserError, match=r"1 runs failed:\n  .*nowhere"):
        fedmpi.sweep(plan, tmp_path / "all", progress=False)
    assert set(fedmpi.load_runs(tmp_path / "all")["model.name"]) == {"logistic"}


def test_check_tells_what_the_command_prints(small_config, capsys):
    """As an object with facts; printed, as the command."""
    with pytest.raises(SystemExit):
        main(["check", str(small_config), "--ranks", "3"])
    printed = capsys.readouterr().out
    found = fedmpi.check(small_config, ranks=3)
    assert str(found) in printed
    assert found.num_clients == CONFIG["data"]["num_clients"]
    assert found.client_sizes.sum() > 0
    assert fedmpi.check(CONFIG, model=nn.Sequential(nn.Flatten(), nn.Linear(36, 10))).num_params == 370
    with pytest.raises(ConfigError):
        fedmpi.check(CONFIG, {"data.num_clients": 0})


def test_advise_is_the_report_of_the_command(small_config, capsys):
    """The same JSON object, also with measured constants."""
    import json

    with pytest.raises(SystemExit):
        main(["advise", str(small_config), "--json"])
    assert fedmpi.advise(small_config) == json.loads(capsys.readouterr().out)
    measured = fedmpi.advise(CONFIG, measure=True, progress=False)
    assert measured["constants"]["L"] > 0
