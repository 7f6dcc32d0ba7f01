#!/usr/bin/env bash
# From nothing to a picture: set up fedmpi, then compare FedAvg and amplified FedAvg on two ranks, on
# real images that come with it. After installation about a minute.
set -euo pipefail
# shellcheck source=jobs/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

OUT=${1:-$ROOT/runs/quickstart}
mkdir -p "$OUT" || fail "cannot write to $OUT"

for method in fedavg amplified; do
  printf '\n'
  mpirun -n 2 fedmpi run "$ROOT/configs/quickstart-$method.toml" --out "$OUT/$method.h5" --force ||
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
