"""From a config to result files: single runs, sweeps, published experiments, speed figures, job scripts."""
