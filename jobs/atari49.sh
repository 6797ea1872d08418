#!/usr/bin/env bash
#SBATCH --job-name=atari49
#SBATCH --array=1-49
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=17
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=atari49-%a.out
# The 49 games of the Gorila paper as one array job: one server and 16 bundles for each.
#
#   sbatch jobs/atari49.sh [trainer arguments]                 all games, into $SCRATCH/atari49 (without it: runs/atari49)
#   sbatch --array=8,12 jobs/atari49.sh --set run.seed=2       two of them, with another seed
#
# A job that stops before its run is at its end is queued again, and goes on. Submit it from the repository.
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"
# shellcheck source=jobs/slurm.sh
source jobs/slurm.sh
enter_environment # what your site needs belongs into jobs/site.sh: see jobs/slurm.sh

game=$(sed -n "${SLURM_ARRAY_TASK_ID:?submit it with sbatch}p" configs/atari49.txt)
[[ $game ]] || { echo "configs/atari49.txt has no line $SLURM_ARRAY_TASK_ID" >&2; exit 2; }
name=${game#ALE/}
train_and_requeue "${SCRATCH:-runs}/atari49/${name%-v5}" configs/atari49.toml --set "env.id=$game" "$@"
