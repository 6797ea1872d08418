#!/usr/bin/env bash
# Games times seeds, each a run of its own on one node: a job array whose members go on independently of one another.
#
#   bash jobs/slurm_array.sh [CONFIG.toml] [trainer arguments]       checks every member, and says how to submit them
#   sbatch --array=0-5 jobs/slurm_array.sh [CONFIG.toml] [trainer arguments]
#
# GAMES        environments, separated by spaces (default: three games)
# SEEDS        seeds (default: 1 2)
# RUNS         where the run directories are made: RUNS/GAME/seed-N (default: runs/array)
#
# Member i is game i / (number of seeds) and seed i % (number of seeds), both counted from 0; the check lists them, here
# and in RUNS/members.txt. Every member says which it is, and its run directory's config.toml has it.
#
#SBATCH --job-name=hpcrl-array
#SBATCH --nodes=1
#SBATCH --ntasks=5
#SBATCH --cpus-per-task=1
#SBATCH --time=04:00:00
# Warn this script (B:) five minutes before the end, in case that the run does not know when that is:
#SBATCH --signal=B:USR1@300
# Queue the job again when a node fails or another job takes its place, and go on in the same output file:
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%A_%a.out
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"
# shellcheck source=jobs/slurm.sh
source jobs/slurm.sh
enter_environment # what your site needs belongs into jobs/site.sh: see jobs/slurm.sh

read -ra games <<<"${GAMES:-ALE/Pong-v5 ALE/Breakout-v5 ALE/Qbert-v5}"
read -ra seeds <<<"${SEEDS:-1 2}"
members=$(( ${#games[@]} * ${#seeds[@]} ))
runs=${RUNS:-runs/array}
if [[ ${1:--} == -* ]]; then
    set -- configs/pong_gorila.toml "$@"
fi

if [[ -z ${SLURM_ARRAY_TASK_ID:-} ]]; then
    mkdir -p "$runs"
    "${HPCRL[@]}" plan "$@" --array <(printf '%s\n' "${games[@]}") --seeds "${seeds[*]}" --ranks 5 |
        tee "$runs/members.txt"
    echo "Submit them with: sbatch --array=0-$(( members - 1 )) jobs/slurm_array.sh $*"
    exit
fi
if (( SLURM_ARRAY_TASK_ID >= members )); then
    echo "expected --array=0-$(( members - 1 )) for ${#games[@]} games and ${#seeds[@]} seeds," \
        "got member $SLURM_ARRAY_TASK_ID" >&2
    exit "$MISTAKE"
fi
game=${games[SLURM_ARRAY_TASK_ID / ${#seeds[@]}]}
seed=${seeds[SLURM_ARRAY_TASK_ID % ${#seeds[@]}]}
echo "member $SLURM_ARRAY_TASK_ID: $game, seed $seed"
train_and_requeue "$runs/${game//\//-}/seed-$seed" "$@" --set "env.id=$game" --set "run.seed=$seed"
