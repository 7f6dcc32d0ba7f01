#!/usr/bin/env bash
# Set up fedmpi with its test dependencies and run all tests. Any argument goes to every pytest call.
set -euo pipefail
EXTRAS="test"
# shellcheck source=jobs/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$ROOT"

# Tests on the real FashionMNIST need Debian's package. Where it cannot be installed they are skipped,
# and the skips are counted at the end.
if [ ! -e /usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz ] &&
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  printf 'Installing dataset-fashion-mnist ...\n'
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends dataset-fashion-mnist; } \
    >/dev/null 2>&1 || printf 'It could not be installed; tests that need it will be skipped.\n'
fi

status=0
report() { printf '\n== %s ==\n' "$*"; }

report "style"
ruff check . && ruff format --check . || status=1

report "unit tests"
python -m pytest tests/unit --doctest-modules fedmpi "$@" || status=1

report "fuzz tests (thousands of cases: pytest tests/fuzz --long)"
python -m pytest tests/fuzz "$@" || status=1

# The comparison of all methods with their twins takes most of the time: on 2 and 3 ranks only.
for ranks in 1 2 3 4; do
  report "MPI tests on $ranks ranks"
  case $ranks in 2 | 3) some=() ;; *) some=(--ignore tests/mpi/test_methods.py) ;; esac
  timeout 300 mpirun -n "$ranks" python -m pytest tests/mpi --with-mpi --require-mpi-tests "${some[@]}" "$@" ||
    status=1
done

report "MPI tests on 2 ranks of MPICH"
# A second environment with MPICH that borrows everything else from the first: one MPI per environment.
mpich="$ROOT/.venv-mpich"
if [ ! -e "$mpich/.installed" ]; then
  python -m venv "$mpich"
  "$VENV/bin/python" -c 'import site; print(site.getsitepackages()[0])' \
    >"$("$mpich/bin/python" -c 'import site; print(site.getsitepackages()[0])')/borrowed.pth"
  step "Installing MPICH" "$mpich/bin/pip" install --disable-pip-version-check --no-deps --ignore-installed \
    -c constraints.txt mpi4py mpich
  touch "$mpich/.installed"
fi
timeout 300 "$mpich/bin/mpirun" -n 2 "$mpich/bin/python" -m pytest tests/mpi --with-mpi --require-mpi-tests \
  --ignore tests/mpi/test_methods.py "$@" || status=1

report "launch tests: fedmpi under mpirun, seen from outside"
python -m pytest tests/launch "$@" || status=1

report "job scripts on a real SLURM of two virtual nodes (skipped without root and apt)"
python -m pytest tests/slurm "$@" || status=1

if [ "$status" != 0 ]; then
  printf '\nfedmpi tests: FAILED, see above\n' >&2
else
  printf '\nfedmpi tests: all passed\n'
fi
exit "$status"
