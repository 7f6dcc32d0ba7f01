#!/usr/bin/env bash
# Set up fedmpi with its test dependencies and run all tests; a table at the end says how long each part took,
# and what was skipped and why.
#   bash jobs/test.sh               everything; MPI tests on Open MPI, and on 2 ranks of MPICH
#   bash jobs/test.sh --mpi mpich   the MPI tests on 1 to 4 ranks of MPICH, nothing else
#   bash jobs/test.sh --device cuda the tests of tests/accelerator on this machine's GPU instead of a simulated
#                                   one, with determinism, memory over 200 rounds and speed; nothing else
# Any other argument goes to every pytest call.
# shellcheck disable=SC2317  # `part` calls functions by their names
set -euo pipefail
EXTRAS="test"
# shellcheck source=jobs/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$ROOT"
note_login_node "computes for some ten minutes on two cores; jobs/README.md tells how to ask for a job"
command -v mpirun >/dev/null 2>&1 || fail "no mpirun is found, which the tests need; jobs/quickstart.sh works without, inside a job"
only_mpich='' only_gpu=''
if [ "${1:-}" = --device ]; then
  case ${2:-} in
    cuda) only_gpu=yes FEDMPI_TEST_DEVICE=cuda; export FEDMPI_TEST_DEVICE ;;
    *) fail "--device ${2:-}: expected cuda" ;;
  esac
  shift 2
fi
if [ "${1:-}" = --mpi ]; then
  case ${2:-} in
    mpich) only_mpich=yes ;;
    openmpi) ;;
    *) fail "--mpi ${2:-}: expected openmpi or mpich" ;;
  esac
  shift 2
fi

work=$(mktemp -d)  # the log and the report of each part, and the list of parts
# A place of our own for Open MPI's shared memory: a job that was killed leaves a file there, its name has
# 16 random bits, and a later job that draws the same ones crashes when it starts.
shared=$(mktemp -d /dev/shm/fedmpi-tests.XXXXXX 2>/dev/null || mktemp -d)
export OMPI_MCA_btl_sm_backing_directory=$shared
trap 'rm -rf "$work" "$shared"' EXIT

# Run one part, a command: part NAME COMMAND... Pytest writes $report; the table is made of what is noted here.
part() {
  local name=$1 begin=$SECONDS code=0 file="${1//[^a-zA-Z0-9]/-}.xml"; shift
  local report="$work/$file"
  printf '\n== %s ==\n' "$name"
  printf 'begin\t%s\n' "$name" >>"$work/parts"
  "$@" || code=$?
  [ "$1" != style ] || file=  # has no report
  printf 'end\t%s\t%s\t%s%s\n' "$name" "$((SECONDS - begin))" "$code" "${file:+$'\t'$file}" >>"$work/parts"
}

# Run one part beside those that follow; `wait` for $! and show $work/LOG: beside LOG NAME COMMAND...
beside() {
  local log="$work/$1"; shift
  part "$@" >"$log" 2>&1 &
}

finish() { python -m tests.support.summary "$work" "$((SECONDS - started))"; exit; }

style() { ruff check . && ruff format --check .; }

tests() { python -m pytest --junitxml "$report" "$@"; }

# The tests of tests/mpi on some ranks of the MPI in an environment: mpi_tests ENVIRONMENT RANKS [PYTEST ARGUMENT]...
# The comparison of all methods with their twins takes most of the time: on 2 and 3 ranks of Open MPI only.
mpi_tests() {
  local environment=$1 ranks=$2 some=(--ignore tests/mpi/test_methods.py); shift 2
  if [ "$environment" = "$VENV" ]; then
    case $ranks in 2 | 3) some=() ;; esac
  fi
  PATH="$environment/bin:$PATH" timeout 300 mpirun -n "$ranks" python -m pytest tests/mpi --junitxml "$report" \
    --with-mpi --require-mpi-tests "${some[@]}" "$@"
}

# The whole path on a GPU, on some ranks: accelerator_tests RANKS [PYTEST ARGUMENT]... A process of its own, since
# the simulated GPU changes torch. On several ranks only what they do together.
accelerator_tests() {
  local ranks=$1 some=(); shift
  [ "$ranks" = 1 ] || some=(-m mpi)
  timeout 900 mpirun -n "$ranks" python -m pytest tests/accelerator --junitxml "$report" --with-mpi \
    "${some[@]}" "$@"
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

if [ -n "$only_gpu" ]; then
  python -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' ||
    fail "--device cuda: torch sees no CUDA device; check nvidia-smi, CUDA_VISIBLE_DEVICES, and that torch is a CUDA build"
  started=$SECONDS
  for ranks in 1 2; do
    part "GPU, $ranks ranks" accelerator_tests "$ranks" "$@"
  done
  finish
fi

install_mpich
if [ -n "$only_mpich" ]; then
  started=$SECONDS
  for ranks in 1 2 3 4; do
    part "MPI tests, MPICH -n $ranks" mpi_tests "$mpich" "$ranks" "$@"
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

# Two cores are kept busy: SLURM's tests wait for its clock most of the time, and run beside all others; where a
# part uses one core, another does too.
started=$SECONDS
part "style" style
beside slurm "job scripts on a real SLURM" tests tests/slurm "$@"
slurm=$!
part "unit tests, golden bits" tests tests/unit tests/golden --doctest-modules fedmpi -n 2 "$@"

beside fuzz "fuzz tests" tests tests/fuzz "$@"  # thousands of cases: pytest tests/fuzz --long
fuzz=$!
part "MPI tests, Open MPI -n 1" mpi_tests "$VENV" 1 "$@"
wait "$fuzz" || true  # the table tells
cat "$work/fuzz"
for ranks in 2 3 4; do
  part "MPI tests, Open MPI -n $ranks" mpi_tests "$VENV" "$ranks" "$@"
done
part "MPI tests, MPICH -n 2" mpi_tests "$mpich" 2 "$@"
for ranks in 1 2; do
  part "simulated GPU, -n $ranks" accelerator_tests "$ranks" "$@"
done

# fedmpi under mpirun, seen from outside. By file: tests of one share runs that take their time.
part "launch tests" tests tests/launch -n 2 --dist loadfile "$@"
wait "$slurm" || true
cat "$work/slurm"
finish
