"""Clocks beside rounds: what a run has cost, in local steps, bytes, seconds and joules."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import h5py
import numpy as np
import pytest

import fedmpi
from fedmpi.cli.plot import plot
from fedmpi.errors import UserError
from fedmpi.simulation import energy
from fedmpi.storage.clocks import CLOCKS, time_of, totals
from tests.support.run_files import finished_run


class Node:
    """A communicator of one rank, as far as the meter needs one."""

    node_rank = 0

    def maximum(self, values: np.ndarray) -> np.ndarray:
        return values

    def sum_in_place(self, values: np.ndarray) -> None:
        pass


def zone(folder, name: str, kind: str, microjoules: int, wraps_at: int = 10**9):
    """A zone as Linux shows it below /sys/class/powercap."""
    place = folder / name
    place.mkdir(parents=True)
    (place / "name").write_text(f"{kind}\n")
    (place / "energy_uj").write_text(f"{microjoules}\n")
    (place / "max_energy_range_uj").write_text(f"{wraps_at}\n")
    return place / "energy_uj"


@pytest.fixture
def powercap(tmp_path, monkeypatch):
    """An empty folder in place of that of the machine, and no GPU."""
    monkeypatch.setattr(energy, "POWERCAP", tmp_path / "powercap")
    monkeypatch.setattr(energy, "NVML", "libnothing-of-that-name.so")
    return tmp_path / "powercap"


# From a simulation.


def test_scaffold_and_waiting(tmp_path, small_config, powercap):
    """By hand: two clients a round, five steps; SCAFFOLD sends and receives two vectors of 370 floats."""
    who = {"participation.selection": "uniform", "participation.clients_per_round": 2}
    steps = {"algorithm.local_steps": 5, "run.eval_every": 2, **who}
    scaffold = fedmpi.run(small_config, {"algorithm.name": "scaffold", **steps}, progress=False)
    at = np.array([0, 2, 6])
    assert time_of(scaffold, "rounds", at).tolist() == [0, 2, 6]
    assert time_of(scaffold, "local-steps", at).tolist() == [0, 20, 60]
    assert time_of(scaffold, "bytes", at).tolist() == [0, 2 * 2 * 4 * 4 * 370, 6 * 2 * 4 * 4 * 370]
    assert (
        time_of(scaffold, "seconds", scaffold.eval["round"]).tolist() == scaffold.eval.wall_time_s.tolist()
    )
    # Waiting costs rounds, but neither steps nor bytes: all seven in rounds 2 and 5.
    wait = {"algorithm.name": "wait-minibatch", "algorithm.wait_rounds": 3, "algorithm.local_steps": 5}
    waiting = fedmpi.run(small_config, wait, progress=False)
    assert time_of(waiting, "local_steps", np.arange(7)).tolist() == [0, 0, 0, 35, 35, 35, 70]
    assert time_of(waiting, "bytes", np.array([2, 3])).tolist() == [0, 7 * 2 * 4 * 370]
    # With FedPBC the absent train too, and send nothing.
    pbc = fedmpi.run(small_config, {"algorithm.name": "fedpbc", **steps}, progress=False)
    assert time_of(pbc, "local-steps", at).tolist() == [0, 70, 210]
    assert time_of(pbc, "bytes", at).tolist() == [0, 2 * 2 * 2 * 4 * 370, 6 * 2 * 2 * 4 * 370]
    with pytest.raises(UserError, match=r"x = energy: .*RAPL"):
        time_of(waiting, "energy", at)
    assert waiting.energy is None
    assert set(totals(waiting)) == {"rounds", "local_steps", "bytes_sent", "seconds"}


def test_unequal_local_steps(small_config, powercap):
    """Given ones are counted for each client that took part; of drawn ones the mean."""
    who = {"participation.selection": "uniform", "participation.clients_per_round": 2}
    given = fedmpi.run(
        small_config, {"algorithm.local_steps": [1, 2, 3, 4, 5, 6, 7], **who}, progress=False
    )
    taken = (given.participation["client"] + 1).groupby(given.participation["round"]).sum()
    assert time_of(given, "local-steps", np.arange(7)).tolist() == [0, *np.cumsum(taken)]
    drawn = {"algorithm.local_steps": [1, 4], "algorithm.local_steps_law": "uniform", **who}
    run = fedmpi.run(small_config, drawn, progress=False)
    assert time_of(run, "local-steps", np.array([0, 6])).tolist() == [0, 6 * 2 * 2.5]


def test_a_warmup_sends_plain_updates(small_config, powercap):
    """Three rounds of plain FedAvg, then SCAFFOLD: two vectors a participant, then four."""
    settings = {"algorithm.name": "scaffold", "warmup.num_rounds": 3, "warmup.local_lr": 0.1}
    run = fedmpi.run(small_config, settings, progress=False)
    each = 4 * 370 * run.train.participants.to_numpy()
    expected = np.cumsum(each * np.where(np.arange(6) < 3, 2, 4))
    assert time_of(run, "bytes", np.arange(1, 7)).tolist() == expected.tolist()


def test_energy_is_recorded_where_the_node_tells(tmp_path, small_config, powercap):
    """Each evaluation adds what the counters passed since the one before; the table goes to the file."""
    counter = zone(powercap, "intel-rapl:0", "package-0", 0)
    used = iter(range(5_000_000, 100_000_000, 5_000_000))

    def on_round(completed: int) -> None:
        counter.write_text(str(next(used)))

    run = fedmpi.run(
        small_config, {"run.eval_every": 3}, out=tmp_path / "r.h5", on_round=on_round, progress=False
    )
    # on_round is called for rounds 0 to 6, after the evaluation of the round: 0, 3 and 6 rounds of 5 J.
    assert run.energy["round"].tolist() == [0, 3, 6]
    assert run.energy.joules.tolist() == [0.0, 15.0, 15.0]
    assert time_of(run, "energy", np.array([0, 3, 6])).tolist() == [0.0, 15.0, 30.0]
    assert totals(run)["energy_j"] == 30.0
    with h5py.File(tmp_path / "r.h5") as file:
        assert file["energy/joules"].attrs["units"] == "J"


# Counters.


def test_a_counter_wraps_around(powercap):
    """RAPL counts to a largest value and begins again."""
    file = zone(powercap, "intel-rapl:0", "package-0", 900_000_000, wraps_at=1_000_000_000)
    meter = energy.EnergyMeter(Node())
    meter.start()
    file.write_text("100000000")
    assert meter.take() == pytest.approx(200.0)
    assert meter.take() == 0.0


def test_packages_and_memory_count_once(powercap):
    """Cores are a part of their package, psys holds everything once more: they are not added."""
    files = [
        zone(powercap, "intel-rapl:0", "package-0", 0), zone(powercap, "intel-rapl:0:0", "core", 0),
        zone(powercap, "intel-rapl:0:1", "dram", 0), zone(powercap, "intel-rapl:1", "package-1", 0),
        zone(powercap, "intel-rapl:2", "psys", 0), zone(powercap, "intel-rapl-mmio:0", "package-0", 0),
    ]  # fmt: skip
    meter = energy.EnergyMeter(Node(), num_packed=2)
    meter.start()
    for file, joules in zip(files, (1, 2, 4, 8, 16, 32), strict=True):
        file.write_text(str(joules * 1_000_000))
    assert meter.take() == 13.0 / 2


def test_counters_that_may_not_be_read(powercap):
    """Linux lets only root read them on many machines: then there is no meter, and no error."""
    zone(powercap, "intel-rapl:0", "package-0", 0).unlink()
    assert not energy.EnergyMeter(Node()).is_there


_FAKE_NVML = """
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
static unsigned long long used[2] = {1000, 5000};
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = used + index; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *value) {
  if (device == used + 1) return 3;  /* an old GPU does not count */
  used[0] += 2500;
  *value = used[0];
  return 0;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_gpus_by_nvml(tmp_path, powercap, monkeypatch):
    """A library with NVML's functions: millijoules of each GPU that counts."""
    (tmp_path / "nvml.c").write_text(_FAKE_NVML)
    library = tmp_path / "libnvml.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "nvml.c"], check=True)
    monkeypatch.setattr(energy, "NVML", str(library))
    assert ctypes.CDLL(str(library)).nvmlInit_v2() == 0
    meter = energy.EnergyMeter(Node())
    assert meter.is_there
    meter.start()
    assert meter.take() == 2.5


# What people see.


@pytest.fixture
def runs(tmp_path):
    """Two seeds, without any new attribute, as an older version wrote them."""
    return [str(finished_run(tmp_path / f"{seed}.h5", f"run.seed={seed}")) for seed in (1, 2)]


def test_a_picture_along_a_clock(tmp_path, runs, monkeypatch):
    """Curves of seeds are joined round by round, and drawn where the clock stood on average."""
    from matplotlib.figure import Figure

    saved, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **o: (saved.append(self), save(self, *a, **o)))
    assert plot(runs, str(tmp_path / "f.png"), x="local_steps") == 0
    axis = saved[0].axes[0]
    each = fedmpi.load_run(runs[0]).config["algorithm"]["local_steps"]
    assert axis.get_lines()[0].get_xdata().tolist() == [0, 3 * 2 * each, 6 * 2 * each]
    assert axis.get_xlabel() == "Local steps of all clients"


@pytest.mark.parametrize(
    ("x", "preset", "message"),
    [
        ("round", None, "x = round: unknown; did you mean rounds"),
        ("bytes", None, "x = bytes: .*1.h5 does not hold it: an older fedmpi wrote the file"),
        ("seconds", "timing", "--x seconds: not with --preset timing"),
    ],
)
def test_clocks_that_cannot_be_drawn(tmp_path, runs, x, preset, message):
    """An unknown clock, one that a file does not hold, a picture without curves: refused in words."""
    with pytest.raises(UserError, match=message):
        plot(runs, str(tmp_path / "f.png"), preset, x=x)
    assert not (tmp_path / "f.png").exists()


def test_every_clock_is_in_the_report(runs):
    """The page's curves have each clock that the file holds; the table has their totals."""
    from fedmpi.results.report import collect

    run = fedmpi.load_run(runs[0])
    curve = collect.curve(run)
    assert curve["seconds"] == [0.0, 0.75, 1.5]
    assert "bytes" not in curve
    assert set(curve) & set(CLOCKS) == {"local-steps", "seconds"}
    assert collect.figures(run)["local_steps"] == 12 * run.config["algorithm"]["local_steps"]
