"""Small experiments that between them take every branch of the path on a GPU."""

from __future__ import annotations

from pathlib import Path

BASE = """
[run]
num_rounds = 4
eval_every = 2
[data]
dataset = "synthetic"
num_clients = 14
train_samples = 560
test_samples = 100
shape = [1, 6, 6]
partition = "majority-label"
[model]
name = "logistic"
[participation]
selection = "uniform"
clients_per_round = 10
[algorithm]
local_lr = 0.05
local_steps = 3
batch_size = 8
"""
CNN = ('model.name="cnn-fashion"', "data.shape=[1,28,28]", "data.train_samples=280", "run.num_rounds=2")
LOOP = 'algorithm.engine="loop"'
OWN, DATA = "tests.accelerator.own_code", Path(__file__).parent / "data"
METHODS = (
    "mifa", "fedau", "fedvarp", "scaffold", "amplified-scaffold", "fedprox", "fedadam", "fedyogi",
    "fedavgm", "focus", "fedstale", "debiasing-fedavg", "fedexp", "feddyn", "fedawe", "fedpbc", "mimelite",
    "fednova",
)  # fmt: skip
BERNOULLI = (
    'participation.availability="bernoulli"', "participation.probability=0.6",
    'participation.selection="all"',
)  # fmt: skip
UNEQUAL = ("algorithm.local_steps=[1, 3]", 'algorithm.local_steps_law="uniform"')
LATE = (
    "participation.late_probability=0.5",
    "participation.late_rounds=[1, 2]",
)
DIRICHLET = ('data.partition="dirichlet"', "data.alpha=0.3")
TEXT = (
    'task.name="next-character"', 'data.dataset="synthetic-text"', 'data.partition="iid"',
    "data.sequence_length=5", "data.train_samples=280", "model.width=8", "run.num_rounds=2",
)  # fmt: skip
CASES: dict[str, tuple[str, ...]] = {
    "logistic": (),
    "mlp": ('model.name="mlp"', "model.hidden=[33,17]"),
    "float64": ('run.dtype="float64"',),
    "loop": (LOOP,),
    "loop in float64": (LOOP, 'run.dtype="float64"'),
    "the paper's CNN": CNN,
    "CNN by vmap": (*CNN, 'algorithm.engine="batched"'),
    # By vmap: by the loop a CPU takes torch's own LSTM, which rounds in another order.
    "text by LSTM": (*TEXT, 'model.name="char-lstm"', 'algorithm.engine="batched"'),
    "augmented": ("data.augment=true",),
    "augmented loop": ("data.augment=true", LOOP),
    "clipped": ("algorithm.clip_norm=0.5",),
    "clipped loop": ("algorithm.clip_norm=0.5", LOOP),
    "inverse rate": ('algorithm.lr_schedule="inverse"',),
    "inverse rate, loop": ('algorithm.lr_schedule="inverse"', LOOP),
    "noisy quadratic": (
        'model.name="quadratic"', 'data.dataset="quadratic"', "data.num_clients=3", "data.noise_std=0.1",
        "data.centers=[[0.0, 1.0], [2.0, 3.0], [1.0, 0.5]]", "participation.clients_per_round=2",
        "algorithm.batch_size=0",
    ),
    "unequal steps": (*UNEQUAL, "data.augment=true"),
    "unequal steps, loop": (*UNEQUAL, LOOP),
    "dropout": (f'model.name="{OWN}:dropout"',),
    "frozen parameters": (f'model.name="{OWN}:frozen"',),
    "a large model": (f'model.name="{OWN}:large"', "run.num_rounds=3", "participation.clients_per_round=3"),
    "a method for numbers": (f'algorithm.name="{OWN}:Heavy"',),
    "a method for numbers, loop": (
        f'algorithm.name="{OWN}:Heavy"', LOOP, 'algorithm.lr_schedule="inverse"',
    ),
    "always": ('participation.availability="always"',),
    "periodic": (
        'participation.availability="periodic"', "participation.num_groups=2",
        "participation.rounds_per_group=1", "participation.clients_per_round=3",
    ),
    "bernoulli": BERNOULLI,
    "markov": (
        'participation.availability="markov"', "participation.to_active=0.4",
        "participation.to_inactive=0.3", 'participation.selection="all"',
    ),
    "sinusoidal": (
        'participation.availability="sinusoidal"', "participation.probability=0.5",
        "participation.amplitude=0.4", "participation.rounds_per_day=3", 'participation.selection="all"',
    ),
    "trace": (
        'participation.availability="trace"', f'participation.trace="{DATA}/trace.csv"',
        'participation.selection="all"',
    ),
    "several at once": (
        'participation.availability=[{name="bernoulli", probability=0.7}, {name="markov", to_active=0.5, '
        'to_inactive=0.2}]', 'participation.selection="all"',
    ),
    "late": (*LATE, "data.augment=true"),
    "late, loop": (*LATE, LOOP),
    "schedule": ('participation.selection="schedule"', f'participation.schedule="{DATA}/schedule.csv"'),
    "an own function": (f'participation.availability="{OWN}:who"', 'participation.selection="all"'),
    "permuted": ('participation.selection="permutation"',),
    "dirichlet": DIRICHLET,
    "dirichlet, loop": (*DIRICHLET, LOOP),
    "full batches": ("algorithm.batch_size=0",),
    "theory": ("run.record_theory_every=2",),
    "cuda_aware": ("run.cuda_aware=true",),
    "amplified": ("algorithm.amplification=3.0", "algorithm.amplify_every=2"),
    "f3ast": ('algorithm.name="f3ast"', 'participation.selection="by-method"'),
    "ca-fed": ('algorithm.name="ca-fed"', 'participation.selection="all"'),
    "fedlaavg": ('algorithm.name="fedlaavg"', 'participation.selection="least-recent"'),
    **{name: (f'algorithm.name="{name}"',) for name in METHODS},
    **{f"{name}, loop": (f'algorithm.name="{name}"', LOOP) for name in METHODS},
    "wait-minibatch": ('algorithm.name="wait-minibatch"', "algorithm.wait_rounds=2"),
    "wait-full": ('algorithm.name="wait-full"', "algorithm.wait_rounds=2"),
}  # fmt: skip
