"""The benchmark's arithmetic and words; its measurements are commands, not tests."""

from __future__ import annotations

import pytest
import torch

from fedmpi.cli.bench_table import projection, table
from fedmpi.experiments.bench.figures import CIFAR, FASHION, LOGISTIC
from fedmpi.experiments.bench.passes import Passes, host_passes
from fedmpi.experiments.bench.plain import PlainLoop, make_model
from fedmpi.experiments.bench.record import add_to_record, compared, read_record
from fedmpi.experiments.bench.sides import kernel_seconds, outside_mpi, step_flop

RESULTS = {
    "fashion": {
        "ranks": 2, "rounds_per_s": 4.0, "plain_rounds_per_s": 2.0, "ratio": 2.0, "ratio_median": 1.9,
        "scaling": 1.95, "outside_local_sgd": 0.021, "own_overhead": 0.011, "waiting": 0.01,
        "rounds_per_s_one_rank": 2.05,
    },
    "evaluation": {
        "cnn-fashion": {"ranks": 2, "samples": 70_000, "seconds": 6.0, "plain_seconds": 12.0, "ratio": 2.0,
                        "ratio_median": 2.1},
    },
    "rounds": {"rounds_per_s": 5000.0, "times_by_hand": 20.0},
    "seeds": {"seeds": 10, "run_rounds_per_s": 8000.0, "one_by_one_run_rounds_per_s": 2000.0, "ratio": 4.0,
              "ratio_median": 3.9},
    "logistic": {
        "ranks": 2, "rounds_per_s": 100.0, "plain_rounds_per_s": 10.0, "ratio": 10.0, "ratio_median": 9.0,
        "scaling": 1.5, "outside_local_sgd": 0.2, "own_overhead": 0.15, "waiting": 0.05,
        "rounds_per_s_one_rank": 50.0,
    },
    "roofline": {"step_ms": 8.0, "step_mflop": 541.0, "sgemm_gflop_per_s": 100.0, "share_of_sgemm": 0.676,
                 "share_of_kernels": 0.75},
    "clients": [
        {"num_clients": 250, "start_s": 3.0, "outside_local_sgd_ms": 0.7, "memory_mb": 260.0},
        {"num_clients": 1_000_000, "start_s": 5.5, "outside_local_sgd_ms": 0.9, "memory_mb": 410.0},
    ],
    "file_bytes_per_round": 120.0,
}  # fmt: skip


def test_the_table_tells_every_figure():
    """Ratios, medians, scaling, roofline, and what a million clients add: 0.2 ms of 20 ms."""
    text = table(RESULTS)
    for part in (
        "4.00 rounds/s on 2 ranks, plain loop 2.00 on 2 threads: 2.00 times (medians 1.90)",
        "2 ranks over 1: 1.95 times; outside local SGD 2.1% of a round: 1.1% for the sum",
        "1.0% waiting for the slower rank's local SGD",
        "70,000 samples by cnn-fashion in 6 s on 2 ranks, plain loop 12 s: 2.00 times (medians 2.10)",
        "5,000 rounds/s of the appendix example on one rank, 200 us each, 20 times numpy by hand",
        "8,000 rounds/s in all of 10 seeds in lockstep, 2,000 one by one: 4.00 times (medians 3.90)",
        "8.00 ms for 541 MFLOP: 68% of the 100 GFLOP/s",
        "take 75% of that time; if all else were free, FMNIST-250 would be 2.67 times the plain",
        "N = 10^6 adds 1.0% to a",
        "120 bytes a round; 300,000 rounds: 36 MB",
    ):
        assert part in text


def test_the_kernels_of_a_step_are_its_convolutions_and_products():
    """The paper's CNN: two convolutions forward, two backward; dense layers: 2 forward, 4 backward."""
    from fedmpi.experiments.bench.sides import _Kernels

    model, images = make_model("cnn-fashion"), torch.randn(2, 1, 28, 28)
    with _Kernels() as kernels:
        torch.autograd.grad(model(images).sum(), list(model.parameters()))
    names = [call.func.overloadpacket.__name__ for call in kernels.calls]
    assert [names.count(n) for n in ("convolution", "convolution_backward", "addmm", "mm")] == [2, 2, 2, 4]


def test_a_projection_without_its_figure_is_refused_before_measuring(fedmpi_cli):
    """Minutes of measuring must not end in an error."""
    done = fedmpi_cli("bench", "--only", "clients", "--project-ranks", 16)
    assert done.returncode == 2
    assert "--project-ranks needs the roofline figure: add it to --only" in done.stderr


def test_the_projection_is_the_alpha_beta_model():
    """Steps, passes over vectors, allreduces over a slow network, of twice the bytes for many clients."""
    passes = Passes(kept=0.01, streamed=0.02, server=0.1)
    text = projection(RESULTS, [2, 64], latency_us=1000.0, bandwidth_gbs=0.001, passes=passes)
    two, many = (line.split() for line in text.splitlines()[-2:])

    # Two ranks, S = 10: 5 clients x 5 steps of 8 ms, two allreduces of one hop each way.
    compute, rest = 25 * 0.008, 5 * 0.01 + 0.1 + 2 * 2 * 0.001 + 8 * 228_586 / 1e6
    assert float(two[1]) == pytest.approx(1 / (compute + rest), abs=0.05)
    assert two[2] == f"{compute / (compute + rest):.0%}"

    # 64 ranks, S = 640: ten clients each, added as they come, in two words; six hops, one message more.
    compute, rest = 50 * 0.008, 10 * 0.02 + 0.1 + 3 * 12 * 0.001 + 2 * 63 / 64 * 16 * 228_586 / 1e6
    assert many[4] == f"{compute / (compute + rest):.0%}"


@pytest.mark.parametrize(
    ("name", "count"), [("logistic", 7850), ("cnn-fashion", 228_586), ("cnn-cifar", 2_218_314)]
)
def test_the_plain_loop_has_the_same_models(name, count):
    """Both sides train networks of the same size."""
    assert sum(p.numel() for p in make_model(name).parameters()) == count


def test_the_plain_loop_learns(tmp_path):
    """The loop that fedmpi is compared with does all the work that it tells the time of; its loss falls."""
    import time

    import numpy as np

    numbers = np.random.default_rng(1)
    labels = numbers.integers(0, 10, 2500)
    images = numbers.integers(0, 60, (2500, 1, 28, 28), np.uint8)
    images[np.arange(2500), 0, labels] += 150  # a bright row tells the label
    np.savez(tmp_path / "data.npz", images=images, labels=labels)
    job = {"data": tmp_path / "data.npz", "model": "logistic", "local_steps": 5, "local_lr": 0.01}
    loop = PlainLoop(job)

    def loss() -> float:
        loop.model.load_state_dict(loop.server)
        return torch.nn.functional.cross_entropy(loop.model(loop.images), loop.labels).item()

    before = loss()
    samples = []  # of each pass through the model
    loop.model.register_forward_hook(lambda model, inputs, outputs: samples.append(len(outputs)))
    for work, expected in (
        (lambda: loop.train(20), [16] * 20 * 10 * 5),
        (loop.evaluate, [256] * 9 + [196]),
    ):
        samples.clear()
        begin = time.perf_counter()
        seconds = work()
        assert 0.5 * (time.perf_counter() - begin) < seconds < time.perf_counter() - begin
        assert samples == expected
    assert loss() < 0.5 * before


def test_flop_of_a_step_are_those_of_the_paper_s_cnn():
    """541 MFLOP for 16 images, without the gradient of the first convolution's input."""
    from types import SimpleNamespace

    from fedmpi.models.builtin import _cnn
    from fedmpi.models.flat import FlatModel

    model = FlatModel(_cnn((1, 32, 32), (1568, 128, 10)), torch.float32, torch.device("cpu"))
    simulation = SimpleNamespace(model=model, data=SimpleNamespace(shape=(1, 28, 28)))
    assert step_flop(simulation) / 1e6 == pytest.approx(541, rel=0.01)


@pytest.mark.parametrize("job", [FASHION, LOGISTIC, CIFAR], ids=lambda job: job.name)
def test_both_sides_compute_on_the_cpu(job):
    """Also on a machine with a GPU: the plain loop has none, and a comparison is of like with like."""
    assert job.config().run.device == "cpu"


def test_the_roofline_s_images_lie_where_the_model_does():
    """On any device: a step with images elsewhere would fail."""
    from types import SimpleNamespace

    from fedmpi.models.builtin import _cnn
    from fedmpi.models.flat import FlatModel

    model = FlatModel(_cnn((1, 32, 32), (1568, 128, 10)), torch.float32, torch.device("meta"))
    simulation = SimpleNamespace(model=model, data=SimpleNamespace(shape=(1, 28, 28)))
    assert step_flop(simulation) / 1e6 == pytest.approx(541, rel=0.01)
    assert kernel_seconds(simulation) > 0


def test_other_programs_do_not_look_like_ranks(monkeypatch):
    """The plain loop must not inherit what makes a process a rank."""
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("PMIX_RANK", "1")
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
    kept = outside_mpi(2)
    assert not {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK"} & kept.keys()
    assert kept["OMPI_ALLOW_RUN_AS_ROOT"] == "1"
    assert kept["OMP_NUM_THREADS"] == "2"


def test_the_appendix_example_by_hand_is_that_of_fedmpi():
    """What the fixed cost is compared with computes the same."""
    import numpy as np

    from fedmpi.experiments.bench.small import _APPENDIX, appendix_by_hand
    from tests.support.simulations import simulate, single_rank

    simulation, _ = simulate(single_rank(), _APPENDIX, ("run.num_rounds=10",))
    np.testing.assert_allclose(simulation.global_params, appendix_by_hand(10), rtol=1e-12)


NOW = {"date": "2026-11-02", "version": "fedmpi 2", "machine": "here, 2 ranks"}


def test_figures_are_compared_with_earlier_ones(tmp_path):
    """A record keeps all results; what both have is told, with the change in its sense."""
    then = NOW | {"version": "fedmpi 1", "date": "2026-11-01"}
    record = tmp_path / "sub" / "record.json"
    add_to_record(record, then | {"seeds": {"ratio": 9.0}})
    add_to_record(
        record, then | {"seeds": {"ratio": 4.0}, "evaluation": {"cnn": {"seconds": 5.0}}, "rounds": {}}
    )
    kept = read_record(record, "--against")
    assert [results["seeds"]["ratio"] for results in kept] == [9.0, 4.0]
    now = NOW | {
        "seeds": {"ratio": 5.0},
        "evaluation": {"cnn": {"seconds": 7.0}},
        "fashion": {"ratio": 2.0},
    }
    first, seeds, evaluation = compared(now, kept[-1])
    assert first == "against fedmpi 1 of 2026-11-01, here, 2 ranks:"
    assert seeds.split() == ["seeds", "ratio", "4", "->", "5", "+25", "%", "better"]
    assert evaluation.split() == ["evaluation", "cnn", "seconds", "5", "->", "7", "+40", "%", "worse"]
    other = compared(NOW | {"machine": "there, 2 ranks"}, kept[-1])
    assert "another machine: now there, 2 ranks" in other[1]
    assert "no figure was measured both times" in other[2]


@pytest.mark.parametrize("option", ["--save", "--against"])
def test_what_is_no_record_is_refused_before_measuring(fedmpi_cli, tmp_path, option):
    """And it is left as it is."""
    (tmp_path / "notes.json").write_text('{"my": "notes"}')
    done = fedmpi_cli("bench", "--only", "rounds", option, "notes.json")
    assert done.returncode == 2
    assert f"{option} notes.json: not a record of figures; expected a file that --save made" in done.stderr
    assert (tmp_path / "notes.json").read_text() == '{"my": "notes"}'
    if option == "--against":
        assert fedmpi_cli("bench", option, "missing.json").returncode == 2


def test_passes_on_the_host_are_measured():
    """Each takes some time."""
    passes = host_passes(1000)
    assert min(passes.kept, passes.streamed, passes.server) > 0
