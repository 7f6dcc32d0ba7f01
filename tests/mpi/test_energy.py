"""The energy of all nodes of a run, as their first ranks tell."""

from __future__ import annotations

import pytest

from fedmpi.simulation import energy

pytestmark = pytest.mark.mpi


def test_a_node_is_counted_once(comm, tmp_path, monkeypatch):
    """All ranks agree that there is a meter, and get the joules of the node, whatever their number."""
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    for name, text in {"name": "package-0", "energy_uj": "0", "max_energy_range_uj": "100000000"}.items():
        (zone / name).write_text(text)
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    monkeypatch.setattr(energy, "NVML", "libnothing-of-that-name.so")
    meter = energy.EnergyMeter(comm)
    assert meter.is_there
    meter.start()
    (zone / "energy_uj").write_text("7000000")
    assert meter.take() == 7.0


def test_other_ranks_need_no_counter(comm, tmp_path, monkeypatch):
    """Without any counter all ranks agree on that: nobody waits for a sum."""
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    monkeypatch.setattr(energy, "NVML", "libnothing-of-that-name.so")
    assert not energy.EnergyMeter(comm).is_there
