#!/usr/bin/env bash
# From nothing to a picture: set up fedmpi, then compare FedAvg and amplified FedAvg on two ranks, on
# real images that come with it. After installation about a minute.
set -euo pipefail
# shellcheck source=jobs/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

note_login_node "starts two ranks for about a minute; elsewhere: salloc --nodes=1 --ntasks=2 --time=10 bash jobs/quickstart.sh"
if command -v mpirun >/dev/null 2>&1; then
  launch=(mpirun -n 2)
elif [ -n "${SLURM_JOB_ID:-}" ]; then
  launch=(srun -n 2)
else
  fail "no mpirun is found: here srun starts ranks, inside a job; jobs/README.md leads to the first one"
fi

OUT=${1:-$ROOT/runs/quickstart}
mkdir -p "$OUT" || fail "cannot write to $OUT"

for method in fedavg amplified; do
  printf '\n'
  "${launch[@]}" fedmpi run "$ROOT/configs/quickstart-$method.toml" --out "$OUT/$method.h5" --force ||
    fail "the run of $method failed, see the message above"
done

printf '\n'
fedmpi plot "$OUT/fedavg.h5" "$OUT/amplified.h5" --out "$OUT/quickstart.png" >/dev/null ||
  fail "the picture could not be drawn, see the message above"
cat <<END
Made:
  $OUT/quickstart.png   training loss, training and test accuracy over rounds
  $OUT/fedavg.h5        results; look inside with: $VENV/bin/fedmpi info $OUT/fedavg.h5
  $OUT/amplified.h5
END
