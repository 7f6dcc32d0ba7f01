"""Who computes where: the table at the start of a run, and what in it is likely not meant."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from fedmpi.mpi.device import missed_gpus
from fedmpi.mpi.placement import Place, core_quota, from_json, notes, table, to_json, usable_cores


def cpu(rank: int, host: str = "n1", cores: tuple[int, ...] = (0, 1), **changes: object) -> Place:
    """A rank on a CPU."""
    return replace(
        Place(
            rank=rank,
            host=host,
            node_rank=rank,
            device="cpu",
            name="cpu",
            cores=cores,
            core_quota=None,
            threads=1,
            visible_gpus=0,
        ),
        **changes,
    )


def gpu(rank: int, host: str, index: int, visible: int = 2) -> Place:
    """A rank on a GPU."""
    return Place(
        rank=rank,
        host=host,
        node_rank=rank,
        device=f"cuda:{index}",
        name="A100",
        cores=(rank,),
        core_quota=None,
        threads=1,
        visible_gpus=visible,
    )


def test_one_line_for_each_device_of_each_host():
    """Ranks that share a device stand together, in ranges."""
    places = [gpu(0, "n1", 0), gpu(1, "n1", 1), gpu(2, "n1", 0), gpu(3, "node2", 0)]
    assert table(places) == [
        "n1     ranks 0, 2: cuda:0 (A100)",
        "n1     rank 1: cuda:1 (A100)",
        "node2  rank 3: cuda:0 (A100)",
    ]
    assert table([cpu(0, cores=(0,)), cpu(1, cores=(1,)), cpu(2, cores=(4,))]) == [
        "n1  ranks 0-2: cpu, 3 cores"
    ]
    # Each rank sees one GPU only, and calls it cuda:0.
    apart = [replace(gpu(n, "n1", 0, 1), gpu=f"id{n}") for n in range(2)]
    assert table(apart) == ["n1  rank 0: cuda:0 (A100, id0)", "n1  rank 1: cuda:0 (A100, id1)"]
    assert notes(apart) == []
    assert table([cpu(0, threads=2)]) == ["n1  rank 0: cpu, 2 cores, 2 threads each"]
    assert table([]) == []


def test_a_long_table_is_cut_and_says_so():
    """A hundred hosts do not fill the screen; all are in the file."""
    lines = table([cpu(n, f"n{n}") for n in range(100)])
    assert len(lines) == 16
    assert lines[-1] == "... and 85 more devices: `fedmpi info`"


def test_the_file_holds_every_rank():
    """What is written can be read back."""
    places = [cpu(0, core_quota=1.5), gpu(1, "n2", 0)]
    assert from_json(to_json(places)) == places


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([cpu(0), cpu(1)], []),
        ([cpu(n) for n in range(3)], ["3 threads of 3 ranks share 2 cores of n1: use fewer"]),
        ([cpu(0, cores=(0,)), cpu(1, cores=(0,))], ["2 threads of 2 ranks share 1 core of n1"]),
        ([cpu(0, core_quota=1.0), cpu(1, core_quota=1.0)], ["share 1 core of n1"]),
        ([cpu(0, threads=4)], ["4 threads of 1 ranks share 2 cores"]),
        ([gpu(0, "n1", 0), gpu(1, "n1", 1)], []),
        ([gpu(0, "n1", 0)], ["n1: 2 GPUs are visible, 1 used: each rank uses one GPU"]),
        ([gpu(0, "n1", 0, 1), cpu(1, "n2")], ["ranks on A100 and CPU: different kinds of devices round"]),
        ([cpu(0, note="odd"), cpu(1, note="odd")], ["odd"]),
        ([gpu(n, "n1", 0, 1) for n in range(3)], ["3 ranks share a GPU (cuda:0 of n1)"]),
        (
            [replace(gpu(n, "n1", n % 2), takes_turns=True) for n in range(4)],
            ["2 ranks share a GPU (cuda:0 of n1); without MPS they take turns: use one rank a GPU"],
        ),
        ([replace(gpu(n, "n1", 0, 1), gpu=f"id{n}", takes_turns=True) for n in range(2)], []),
        (
            [gpu(0, "n1", 0, 1), replace(gpu(1, "n2", 0, 1), name="V100")],
            [
                "ranks on A100 and V100: different kinds of devices round differently, so the bits "
                "depend on which rank trains which client; choose one kind (SLURM: --constraint"
            ],
        ),
    ],
)
def test_what_is_likely_not_meant(places, expected):
    """Shared cores, idle GPUs and mixed devices are told, each once."""
    found = notes(places)
    assert len(found) == len(expected)
    for note, part in zip(found, expected, strict=True):
        assert part in note


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu.max": "nonsense"}, None),
        ({}, None),
    ],
)
def test_the_quota_of_a_control_group(tmp_path, files, expected):
    """Both versions of control groups are read; what is not there limits nothing."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert core_quota(tmp_path) == expected


def test_usable_cores_are_those_that_the_process_is_bound_to():
    """All that the machine allows, and the one core that is left once the process is bound to it."""
    allowed = os.sched_getaffinity(0)
    assert usable_cores() == tuple(sorted(allowed))
    try:
        os.sched_setaffinity(0, {max(allowed)})
        assert usable_cores() == (max(allowed),)
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(
    ("shown", "wanted", "count", "expected"),
    [("0,1", "auto", 0, True), ("0,1", "auto", 2, False), ("0", "cpu", 0, False), ("", "auto", 0, False)],
)
def test_gpus_that_torch_does_not_see_are_told(monkeypatch, shown, wanted, count, expected):
    """SLURM gave GPUs, torch is a CPU build: a sentence, not silence."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert ("install a CUDA build of torch" in missed_gpus(wanted, count)) == expected
