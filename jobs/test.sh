#!/usr/bin/env bash
# Set up fedmpi with its test dependencies and run all tests.
#   bash jobs/test.sh               everything; MPI tests on Open MPI, and on 2 ranks of MPICH
#   bash jobs/test.sh --mpi mpich   the MPI tests on 1 to 4 ranks of MPICH, nothing else
# Any other argument goes to every pytest call.
set -euo pipefail
EXTRAS="test"
# shellcheck source=jobs/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$ROOT"
only_mpich=
if [ "${1:-}" = --mpi ]; then
  case ${2:-} in
    mpich) only_mpich=yes ;;
    openmpi) ;;
    *) fail "--mpi ${2:-}: expected openmpi or mpich" ;;
  esac
  shift 2
fi

status=0
report() { printf '\n== %s ==\n' "$*"; }

# The tests of tests/mpi on some ranks of the MPI in an environment: mpi_tests ENVIRONMENT RANKS [PYTEST ARGUMENT]...
# The comparison of all methods with their twins takes most of the time: on 2 and 3 ranks of Open MPI only.
mpi_tests() {
  local environment=$1 ranks=$2 some=(--ignore tests/mpi/test_methods.py); shift 2
  if [ "$environment" = "$VENV" ]; then
    case $ranks in 2 | 3) some=() ;; esac
  fi
  PATH="$environment/bin:$PATH" timeout 300 mpirun -n "$ranks" python -m pytest tests/mpi \
    --with-mpi --require-mpi-tests "${some[@]}" "$@" || status=1
}

# A second environment with MPICH that borrows everything else from the first: one MPI per environment.
mpich="$ROOT/.venv-mpich"
install_mpich() {
  [ ! -e "$mpich/.installed" ] || return 0
  python -m venv "$mpich"
  "$VENV/bin/python" -c 'import site; print(site.getsitepackages()[0])' \
    >"$("$mpich/bin/python" -c 'import site; print(site.getsitepackages()[0])')/borrowed.pth"
  step "Installing MPICH" "$mpich/bin/pip" install --disable-pip-version-check --no-deps --ignore-installed \
    -c constraints.txt mpi4py mpich
  touch "$mpich/.installed"
}

finish() {
  if [ "$status" != 0 ]; then
    printf '\nfedmpi tests: FAILED, see above\n' >&2
  else
    printf '\nfedmpi tests: all passed\n'
  fi
  exit "$status"
}

if [ -n "$only_mpich" ]; then
  install_mpich
  for ranks in 1 2 3 4; do
    report "MPI tests on $ranks ranks of MPICH"
    mpi_tests "$mpich" "$ranks" "$@"
  done
  finish
fi

# Some tests need Debian packages: the real FashionMNIST, a browser for the report, shellcheck for the job
# scripts, ip to cut off the network. Where they cannot be installed these tests are skipped, and counted.
missing=()
for package in dataset-fashion-mnist chromium shellcheck iproute2; do
  dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
done
if [ "${#missing[@]}" -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  printf 'Installing %s ...\n' "${missing[*]}"
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >/dev/null 2>&1 ||
    printf 'They could not be installed; tests that need them will be skipped.\n'
fi

report "style"
ruff check . && ruff format --check . || status=1

report "unit tests, golden bits"
python -m pytest tests/unit tests/golden --doctest-modules fedmpi -n 2 "$@" || status=1

install_mpich

# They wait for SLURM's clock most of the time: beside all that follows.
slurm_log=$(mktemp)
python -m pytest tests/slurm "$@" >"$slurm_log" 2>&1 &
slurm=$!

report "fuzz tests (thousands of cases: pytest tests/fuzz --long)"
python -m pytest tests/fuzz "$@" || status=1

for ranks in 1 2 3 4; do
  report "MPI tests on $ranks ranks"
  mpi_tests "$VENV" "$ranks" "$@"
done

report "MPI tests on 2 ranks of MPICH (bash jobs/test.sh --mpi mpich: on 1 to 4)"
mpi_tests "$mpich" 2 "$@"

report "launch tests: fedmpi under mpirun, seen from outside"
python -m pytest tests/launch -n 2 "$@" || status=1

report "job scripts on a real SLURM of two virtual nodes (skipped without root and apt)"
wait "$slurm" || status=1
cat "$slurm_log"
rm -f "$slurm_log"
finish
