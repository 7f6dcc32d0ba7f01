#!/usr/bin/env bash
# One run of configs/fashion-amplified.toml, on 1 node of 4 ranks and 4 GPUs.
# Submit it with sbatch; it requeues itself until all is done.
#SBATCH --job-name=fashion-amplified
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4   # MPI ranks on each node
#SBATCH --cpus-per-task=1
#SBATCH --gpus-per-node=4
#SBATCH --mem-per-cpu=16000M
#SBATCH --time=12:00:00
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append   # a requeued job continues in the same log
#SBATCH --requeue
#SBATCH --signal=B:USR1@120   # seconds before the end to signal this shell, for a checkpoint

set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"
# The environment: load your modules here, the same MPI that fedmpi was installed with.
# shellcheck disable=SC1091
[ ! -f .venv/bin/activate ] || . .venv/bin/activate
export OMP_NUM_THREADS=1
launch=(srun --mpi=pmix)   # or: launch=(mpirun -n "$SLURM_NTASKS")
retries=20

command=(fedmpi run configs/fashion-amplified.toml --out fashion.h5)
# After a requeue the run continues from its checkpoint.
[ ! -e fashion.h5 ] || command=(fedmpi resume fashion.h5)

# The launcher runs in the background, so that this shell hears USR1 and passes it on. All ranks
# then finish their round, write a checkpoint and leave with status 75.
pid='' signalled=''
trap 'signalled=yes; [ -z "$pid" ] || kill -USR1 "$pid" 2>/dev/null || true' USR1
"${launch[@]}" "${command[@]}" &
pid=$!
if [ -n "$signalled" ]; then kill -USR1 "$pid" || true; fi  # it came before the launcher
signalled=yes status=0
while [ -n "$signalled" ]; do  # a signal ends `wait` early
  signalled='' status=0
  wait "$pid" || status=$?
done

# Some sites forbid requeueing: then a job that depends on this one takes its place. Its argument
# is the number of restarts before it.
restarts=$((${1:-0} + ${SLURM_RESTART_COUNT:-0}))
if [ "$status" = 75 ] && [ "$restarts" -lt "$retries" ]; then
  echo "not done yet: requeueing job $SLURM_JOB_ID"
  if ! scontrol requeue "$SLURM_JOB_ID"; then
    next=(sbatch --parsable --dependency="afterany:$SLURM_JOB_ID" "$0" "$((restarts + 1))")
    if new=$(env -u SLURM_RESTART_COUNT "${next[@]}"); then
      echo "requeueing was refused: job $new continues when this one has ended"
    else
      echo "requeueing and sbatch were refused: submit this script again to continue" >&2
    fi
  fi
elif [ "$status" = 75 ]; then
  echo "not done after $retries restarts: submit this script again to continue" >&2
fi
exit "$status"
