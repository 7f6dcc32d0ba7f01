"""Rounds without participants, and what a method does not hear of participation."""

from __future__ import annotations

import numpy as np
import pytest

import fedmpi
from fedmpi.config import METHODS, validate
from fedmpi.experiments.notes import notes_on
from fedmpi.methods import Round, make_method
from tests.support.configs import SELECTION_OF, SMALL

WARMUP = ["warmup.num_rounds=2", "warmup.local_lr=0.1"]
WEIGH_THEMSELVES = {
    "mifa", "fedlaavg", "fedau", "fedvarp", "focus", "wait-minibatch", "wait-full", "debiasing-fedavg",
    "fedawe", "fedpbc", "f3ast", "ca-fed",
}  # fmt: skip


def overrides_of(method: str) -> list[str]:
    """A valid config with a method."""
    others = {
        **{name: [f"participation.selection={selection}"] for name, selection in SELECTION_OF.items()},
        "wait-minibatch": ["algorithm.wait_rounds=3"],
        "wait-full": ["algorithm.wait_rounds=3"],
    }
    return [f"algorithm.name={method}", *others.get(method, [])]


@pytest.mark.parametrize(
    "method", ["mifa", "fedlaavg", "fedavg", "fedau", "fedvarp", "focus", "fedstale", "fedexp", "feddyn",
               "fedawe", "fedpbc"],
)  # fmt: skip
def test_a_round_without_participants(fedmpi_cli, tmp_path, method):
    """MIFA and FedLaAvg move by the remembered mean, and evaluations see it; the others stay."""
    (tmp_path / "c.toml").write_text(SMALL)
    # Three of seven clients are there in rounds 0 and 1, then nobody.
    rows = "\n".join(f"{client},{t},2" for client, t in ((0, 0), (1, 0), (2, 0)))
    (tmp_path / "trace.csv").write_text(f"client,start,end\n{rows}\n")
    words = [
        *overrides_of(method), "participation.availability=trace", "participation.trace=trace.csv",
        "run.eval_every=1", "run.record_params_every=1",
        *(["algorithm.warm_start=false"] if method == "mifa" else []),
    ]  # fmt: skip
    done = fedmpi_cli("run", "c.toml", "--out", "r.h5", *[w for o in words for w in ("--set", o)])
    assert done.returncode == 0, done.stderr
    run = fedmpi.load_run(tmp_path / "r.h5")
    steps = np.diff(run.params[1], axis=0)[2:]
    losses = run.eval.train_loss.to_numpy()[2:]
    assert (run.train.participants[2:] == 0).all()
    if method in ("mifa", "fedlaavg"):
        assert np.abs(steps[0]).max() > 0
        np.testing.assert_allclose(steps, np.broadcast_to(steps[0], steps.shape), rtol=1e-6, atol=1e-9)
        assert len(set(losses)) == len(losses)
    else:
        assert (steps == 0).all()
        assert len(set(losses)) == 1


def test_adaptive_methods_start_at_tau_squared():
    """FedAdam and FedYogi: v of the first round begins at tau^2, so no step divides by tau alone."""
    for method in ("fedadam", "fedyogi"):
        config = validate.parse(SMALL, "c.toml", [f"algorithm.name={method}", "algorithm.tau=0.5"])
        server = make_method(config, 7)
        state = server.init(np.zeros(2))
        assert state.extras["second_moment"].tolist() == [0.25, 0.25]
        sums = {"weighted_sum": np.array([0.0, 1.0])}
        added, state = server.increment(state, Round(0, np.array([0]), np.ones(1), 0.1, sums))
        v = {"fedadam": 0.99 * 0.25 + 0.01, "fedyogi": 0.25 + 0.01}[method]
        assert added == pytest.approx([0, 0.1 * 0.1 / (v**0.5 + 0.5)])


def test_every_method_is_asked():
    """Which methods weigh participants by themselves; a new one has to say so."""
    assert {m for m in METHODS if METHODS.fact(m, "ignores_weights")} == WEIGH_THEMSELVES


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_weighting_that_is_not_read_is_told(method):
    """`weighting` has no effect with those methods, and is told, except in a warm-up of FedAvg."""
    words = [*overrides_of(method), "participation.weighting=all"]
    told = ["participation.weighting has no effect with the other settings"]
    notes = [n for n in notes_on(validate.parse(SMALL, "c.toml", words)) if "weighting" in n]
    assert notes == (told if method in WEIGH_THEMSELVES else [])
    assert not any("weighting" in n for n in notes_on(validate.parse(SMALL, "c.toml", [*words, *WARMUP])))


def test_weights_and_choices_that_are_not_heard(tmp_path):
    """Those of a schedule with mifa, and who is selected with wait-minibatch."""
    (tmp_path / "q.csv").write_text("round,client,weight\n0,1,0.5\n")
    schedule = ["participation.selection=schedule", f"participation.schedule={tmp_path}/q.csv"]
    config = validate.parse(SMALL, "c.toml", ["algorithm.name=mifa", *schedule])
    assert "the weights of participation.schedule have no effect: mifa weighs by itself" in notes_on(config)
    heard = notes_on(validate.parse(SMALL, "c.toml", [*schedule, "algorithm.name=fedavg"]))
    assert not any("weights" in note for note in heard)
    waits = validate.parse(SMALL, "c.toml", overrides_of("wait-minibatch"))
    full = [*overrides_of("wait-full"), "algorithm.batch_size=8"]
    told = "algorithm.batch_size has no effect with the other settings"
    assert told in notes_on(validate.parse(SMALL, "c.toml", full))
    assert told not in notes_on(validate.parse(SMALL, "c.toml", [*full, *WARMUP]))
    text = 'participation.selection = "uniform" has no effect: wait-minibatch takes everybody'
    assert text in notes_on(waits)
    assert text not in notes_on(validate.parse(SMALL, "c.toml", [*overrides_of("wait-minibatch"), *WARMUP]))


def test_check_is_silent_on_weights_that_are_not_used(fedmpi_cli, tmp_path):
    """No sums of q for mifa, though the weighting could not even be computed; for fedavg they are shown."""
    (tmp_path / "c.toml").write_text(SMALL)
    for method in ("mifa", "fedavg"):
        done = fedmpi_cli("check", "c.toml", "--set", f"algorithm.name={method}",
                          "--set", "participation.weighting=all")  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert ("sum of weights q" in done.stdout) == (method == "fedavg")
        assert ("weighting has no effect" in done.stdout) == (method == "mifa")
