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
#SBATCH --job-name=hpcrl-array
#SBATCH --nodes=1
#SBATCH --ntasks=5
#SBATCH --cpus-per-task=1
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%A_%a.out
set -euo pipefail

# Your site: load what MPI and Python need, and enter the environment that hpcrl is installed in.
# module load python mpich
cd "${SLURM_SUBMIT_DIR:-.}"
# shellcheck source=/dev/null
source "${HPCRL_VENV:-.venv}/bin/activate"
# shellcheck source=jobs/slurm.sh
source jobs/slurm.sh

read -ra games <<<"${GAMES:-ALE/Pong-v5 ALE/Breakout-v5 ALE/Qbert-v5}"
read -ra seeds <<<"${SEEDS:-1 2}"
members=$(( ${#games[@]} * ${#seeds[@]} ))
if [[ ${1:--} == -* ]]; then
    set -- configs/pong_gorila.toml "$@"
fi

# Set `game` and `seed`, and the arguments of the trainer that go with them, of a member of the array.
choose() {
    if (( $1 >= members )); then
        echo "expected --array=0-$(( members - 1 )) for ${#games[@]} games and ${#seeds[@]} seeds, got member $1" >&2
        exit 2
    fi
    game=${games[$1 / ${#seeds[@]}]}
    seed=${seeds[$1 % ${#seeds[@]}]}
    chosen=(--set "env.id=$game" --set "run.seed=$seed")
}

if [[ -z ${SLURM_ARRAY_TASK_ID:-} ]]; then
    for (( member = 0; member < members; member++ )); do
        choose "$member"
        hpcrl plan "$@" "${chosen[@]}" --ranks 5 >/dev/null
        echo "$member: $game, seed $seed"
    done
    echo "all $members members are valid; submit them with: sbatch --array=0-$(( members - 1 )) jobs/slurm_array.sh $*"
    exit
fi
choose "$SLURM_ARRAY_TASK_ID"
echo "member $SLURM_ARRAY_TASK_ID: $game, seed $seed"
train_and_requeue "${RUNS:-runs/array}/${game//\//-}/seed-$seed" "$@" "${chosen[@]}"
