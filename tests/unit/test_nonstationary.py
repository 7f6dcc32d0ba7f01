"""FedAWE's laws that change over rounds, and where clients' probabilities come from."""

from __future__ import annotations

import numpy as np
import pytest

from fedmpi.config import validate
from fedmpi.data.partition import ClientLabels, Partition
from fedmpi.errors import ConfigError
from fedmpi.participation import make_participation
from fedmpi.participation.availability import Availability
from fedmpi.theory.long_run import cycle_of, long_run
from fedmpi.theory.weights import Weights
from tests.support.configs import SMALL

MIX = np.array([0.05, 0.12, 0.2, 0.5, 1.0])


def availability(labels: ClientLabels | None = None, seed: int = 1, **keys) -> Availability:
    """Of five clients."""
    text = SMALL.replace('selection = "uniform"\nclients_per_round = 3\n', 'selection = "all"\n')
    who = [f"participation.{key}={value}" for key, value in keys.items()]
    config = validate.parse(text, "c.toml", ["data.num_clients=5", f"run.seed={seed}", *who])
    return make_participation(config, 5, labels)._availability


def laws(t: np.ndarray) -> dict[str, np.ndarray]:
    """(rounds, clients) of each shape, as their `data_participation_each_node_per_round` has it."""
    sine = (0.3 * np.sin(2 * np.pi / 20 * t) + 0.7)[:, None] * MIX
    step = np.where(t // 10 % 2 == 1, 0.4, 1.0)[:, None] * MIX
    return {"sine": sine, "interleaved-sine": np.where(sine < 0.1, 0, sine), "staircase": step}


@pytest.mark.parametrize("shape", ["sine", "interleaved-sine", "staircase"])
def test_probabilities_are_those_of_fedawe(shape):
    """By default the authors' three shapes, in every round; and clients come with that probability."""
    who, t = (
        availability(availability="non-stationary", shape=shape, probability=MIX.tolist()),
        np.arange(60),
    )
    expected = laws(t)[shape]
    found = np.array([who.probability(k, np.arange(5)) for k in t])
    np.testing.assert_allclose(found, expected, atol=1e-12)
    there = np.zeros((20, 5))
    for k in range(20 * 400):
        there[k % 20, who.available(k)] += 1 / 400
    spread = np.sqrt(expected[:20] * (1 - expected[:20]) / 400)
    assert (np.abs(there - expected[:20]) <= 5 * spread + 1e-12).all()


def test_a_shape_is_needed_and_only_some_have_a_cut_off():
    """A missing shape, an unknown one, no probability: each is told."""
    for keys, match in (
        ({"probability": 0.5}, "participation.shape: missing"),
        ({"probability": 0.5, "shape": "square"}, "participation.shape.*staircase"),
        ({"shape": "sine"}, "participation.probability: missing"),
    ):
        with pytest.raises(ConfigError, match=match):
            availability(availability="non-stationary", **keys)


def some_labels() -> ClientLabels:
    """Five clients: labels 0 and 3; 1; 2 and 3; 3; none."""
    labels = np.array([0, 3, 1, 1, 1, 2, 3, 3, 3])
    clients = np.array([0, 0, 1, 1, 1, 2, 2, 3, 3])
    return ClientLabels(Partition.from_clients(clients, 5), labels, 4)


def probabilities(source: str, seed: int = 1, **keys) -> np.ndarray:
    """Of the five clients."""
    who = availability(some_labels(), seed, availability="bernoulli", probability_from=source, **keys)
    return who.probability(0, np.arange(5))


def test_probability_from_the_smallest_label():
    """From min_probability for label 0 to 1 for the last; clients without samples come least."""
    found = probabilities("min-label", min_probability=0.1)
    np.testing.assert_allclose(found, [0.1, 0.4, 0.7, 1.0, 0.1])


def test_probability_from_the_number_of_samples():
    """(n / largest n) ** skew."""
    np.testing.assert_allclose(probabilities("size"), np.sqrt(np.array([2, 3, 2, 2, 0]) / 3))
    assert probabilities("size", probability_skew=0).tolist() == [1.0] * 5


def test_lognormal_probabilities():
    """The largest is 1; logarithms spread by -ln(1 - skew); no labels are needed; skew 0 is 1 for all."""
    assert probabilities("lognormal", probability_skew=0).tolist() == [1.0] * 5
    many = np.log([probabilities("lognormal", seed, probability_skew=0.3) for seed in range(400)])
    assert (many.max(axis=1) == 0).all()
    # The mean range of five normal draws is 2.326 of their standard deviations.
    assert abs((many.max(1) - many.min(1)).mean() / 2.326 + np.log(0.7)) < 0.03


def test_probability_from_label_halves_is_fedawes():
    """p = share * r: r up to 1 for labels 0 and 1, up to 1/2 for 2 and 3, the same r for all clients."""
    many = np.array([probabilities("label-halves", seed) for seed in range(400)])
    of_1, of_3 = many[:, 1], many[:, 3]
    assert 0.97 < of_1.max() < 1
    assert 0.48 < of_3.max() < 0.5
    assert abs(of_1.mean() - 0.5) < 0.06
    assert (many[:, 4] == 0).all()
    r_0, r_2 = 2 * many[:, 0] - of_3, 2 * many[:, 2] - of_3
    assert ((r_0 >= -1e-12) & (r_0 < 1) & (r_2 >= -1e-12) & (r_2 < 0.5)).all()


def test_what_is_expected_is_taken_over_a_whole_period():
    """Mean weights are those of all rounds of a period, not of its first."""
    text = SMALL.replace('selection = "uniform"\nclients_per_round = 3\n', 'selection = "all"\n')
    who = ["availability=non-stationary", "shape=staircase", "probability=0.5", "weighting=all"]
    config = validate.parse(text, "c.toml", [f"participation.{key}" for key in who])
    assert cycle_of(config) == 20
    participation = make_participation(config, 7)
    found = long_run(config, participation, Weights.of_rounds([participation.weights(0)], 7))
    np.testing.assert_allclose(found.means, 0.5 * 0.7 / 7)


def test_groups_fail_together():
    """Each group is away as a whole with its probability, groups and rounds independently of each other."""
    who = availability(
        availability="outages", probability=1, outage_groups=2, outage_probability=0.3
    )  # fmt: skip
    there = np.zeros((8000, 5), bool)
    for t in range(8000):
        there[t, who.available(t)] = True
    assert (there[:, :3] == there[:, :1]).all()
    assert (there[:, 3:] == there[:, 3:4]).all()
    assert np.abs(there.mean(0) - 0.7).max() < 0.03
    assert abs((there[:, 0] & there[:, 4]).mean() - 0.49) < 0.03
    assert abs((there[1:, 0] & there[:-1, 0]).mean() - 0.49) < 0.03
    assert who.probability(0, np.arange(5)).tolist() == [0.7] * 5


def test_outages_leave_members_their_probability_and_no_closed_form_for_equal_weights():
    """(1 - outage) p; E q is known where it does not depend on how many others come."""
    keys = {"probability": MIX.tolist(), "outage_groups": 2, "outage_probability": 0.3}
    who = availability(availability="outages", **keys)
    count = np.zeros(5)
    for t in range(8000):
        count[who.available(t)] += 1
    np.testing.assert_allclose(count / 8000, 0.7 * MIX, atol=0.03)
    text = SMALL.replace('selection = "uniform"\nclients_per_round = 3\n', 'selection = "all"\n')
    settings = ["data.num_clients=5", "participation.availability=outages"]
    settings += [f"participation.{key}={value}" for key, value in keys.items()]
    for weighting, is_known in (("equal", False), ("all", True), ("inverse-probability", True)):
        config = validate.parse(text, "c.toml", [*settings, f"participation.weighting={weighting}"])
        assert (make_participation(config, 5).expected(0) is not None) == is_known
    with pytest.raises(ConfigError, match="outage_groups: 9 groups for 5 clients"):
        validate.parse(text, "c.toml", [*settings, "participation.outage_groups=9"])
