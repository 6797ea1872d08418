# shellcheck shell=bash
# What the batch scripts of this folder share. It is sourced, not run, and defines:
#
#   enter_environment
#
# goes to the directory that the job was submitted from and prepares to start hpcrl there, in one of three ways:
#
#   HPCRL_VENV     the Python environment that it is installed in (default: .venv, or else the one that is active)
#   HPCRL_PACKED   a file of jobs/pack_environment.sh: an environment that is copied to the nodes' own disks first
#   HPCRL_IMAGE    an Apptainer image (see jobs/slurm_container.sh)
#
# Whatever else your site needs (module load …, the variables of this page) belongs into jobs/site.sh, which is read
# first; HPCRL_SITE names another file.
#
#   train_and_requeue RUN_DIR CONFIG [trainer arguments]
#
# trains in RUN_DIR on all tasks of the job, and queues the job again when it stopped before the end of the run: because
# its time was up, because Slurm warned it (USR1), or by a fault, say of a node, if it had written a checkpoint since it
# started. The same script then goes on where it stopped. A run that ended, that somebody stopped (hpcrl stop RUN_DIR),
# that was cancelled, or that has a mistake in its configuration, is not queued again.
#
#   HPCRL_SRUN_MPI   how srun starts an MPI program: pmi2 for MPICH (the default), pmix for Open MPI; `srun --mpi=list`
#   HPCRL_LOCAL      a directory on each node's own disk (default: SLURM_TMPDIR, TMPDIR or /tmp)

# Exit codes of the trainer: stopped cleanly, the same command goes on; a mistake in the configuration or the set-up.
STOPPED=85 MISTAKE=2

# How hpcrl is started.
HPCRL=(python -m hpcrl)

enter_environment() {
    local site venv
    cd "${SLURM_SUBMIT_DIR:-.}" || exit
    site=${HPCRL_SITE:-jobs/site.sh}
    if [[ -f $site ]]; then
        # shellcheck source=/dev/null
        source "$site"
    fi
    if [[ -n ${HPCRL_IMAGE:-} ]]; then
        HPCRL=(apptainer exec --bind "$PWD" "$HPCRL_IMAGE" python3 -m hpcrl)
        if [[ -n ${SLURM_JOB_GPUS:-} ]]; then HPCRL=(apptainer exec --nv "${HPCRL[@]:2}"); fi
        return
    fi
    venv=${HPCRL_VENV:-.venv}
    if [[ -n ${HPCRL_PACKED:-} && -n ${SLURM_JOB_ID:-} ]]; then
        stage "$HPCRL_PACKED"
        venv=$STAGED
    fi
    if [[ -x $venv/bin/python ]]; then
        PATH=$(cd "$venv/bin" && pwd):$PATH
    elif [[ -n ${HPCRL_VENV:-} ]]; then
        echo "HPCRL_VENV: no Python environment in $HPCRL_VENV" >&2
        exit "$MISTAKE"
    fi
}

# Unpack an environment on every node's own disk: hundreds of ranks that each read thousands of small files from one
# shared file system wait for it for minutes; this reads one large file, once. It is removed when this script ends.
stage() {
    local began=$SECONDS
    STAGED=${HPCRL_LOCAL:-${SLURM_TMPDIR:-${TMPDIR:-/tmp}}}/hpcrl-$SLURM_JOB_ID
    trap unstage EXIT
    for_each_group unpack "$1"
    echo "$(date -Is) unpacked $1 in $STAGED on every node, in $(( SECONDS - began )) s"
}

unstage() {
    [[ -n ${STAGED:-} ]] || return 0
    for_each_group on_each_node rm -rf "$STAGED" "$STAGED.tar" || true
    STAGED=
}

unpack() {
    local job=SLURM_JOB_ID${group:+_HET_GROUP_$group}
    sbcast --force --jobid="${!job}" "$1" "$STAGED.tar"
    # shellcheck disable=SC2016  # the variables are of the shell on each node
    on_each_node bash -c 'mkdir -p "$1" && tar -xf "$1.tar" -C "$1" && rm "$1.tar"' bash "$STAGED"
}

# Run a command once on every node of the job, or of one group of a heterogeneous job.
on_each_node() {
    local nodes=SLURM_JOB_NUM_NODES${group:+_HET_GROUP_$group}
    srun --mpi=none ${group:+--het-group="$group"} --nodes="${!nodes}" --ntasks="${!nodes}" --ntasks-per-node=1 \
        --cpus-per-task=1 "$@"
}

# Run a command for every group of a heterogeneous job, with its number in `group`; of another job once, without.
for_each_group() {
    local group=
    if [[ -z ${SLURM_HET_SIZE:-} ]]; then
        "$@"
        return
    fi
    for (( group = 0; group < SLURM_HET_SIZE; group++ )); do
        "$@"
    done
}

train_and_requeue() {
    local run_dir=$1 warned=0 before step status
    shift
    before=$(newest_checkpoint "$run_dir")
    export_end_time
    echo "$(date -Is) start ${SLURM_RESTART_COUNT:-0} of job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, in $run_dir"

    # Signals reach this shell, which asks the run to stop, and waits. Slurm sends TERM to the tasks by itself.
    trap 'warned=1; "${HPCRL[@]}" stop "$run_dir" || true' USR1
    trap : TERM
    become_srun "${HPCRL[@]}" train "$@" --run-dir "$run_dir" &
    step=$!
    while status=0; wait "$step" || status=$?; kill -0 "$step" 2>/dev/null; do
        : # `wait` was ended by a signal
    done

    if (( status == STOPPED )); then
        if (( warned )) || [[ ! -e $run_dir/stop ]]; then requeue; fi
    elif (( status != 0 && status != MISTAKE )); then
        if [[ $(newest_checkpoint "$run_dir") != "$before" ]]; then requeue; fi
    fi
    return "$status"
}

# Start an MPI program on all tasks of the job, in the place of this (background) shell. All groups of a heterogeneous
# job become one MPI world, the first group's ranks first.
become_srun() {
    local options=(--mpi="${HPCRL_SRUN_MPI:-pmi2}" --kill-on-bad-exit=1) command=(srun) group cpus
    if [[ -z ${SLURM_HET_SIZE:-} ]]; then
        # srun of Slurm 22.05 and newer does not take it from the job.
        command+=("${options[@]}" ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} "$@")
    fi
    for (( group = 0; group < ${SLURM_HET_SIZE:-0}; group++ )); do
        if (( group )); then command+=(:); fi
        cpus=SLURM_CPUS_PER_TASK_HET_GROUP_$group
        command+=(--het-group="$group" "${options[@]}" --cpus-per-task="${!cpus:-1}" "$@")
    done
    exec "${command[@]}"
}

newest_checkpoint() {
    find "$1/checkpoints" -maxdepth 1 -name 'step-*[0-9]' 2>/dev/null | sort | tail -n 1 || true
}

# Tell the run when Slurm will end this job. It stops by itself as much earlier as its last checkpoint takes.
export_end_time() {
    local end
    unset HPCRL_END_TIME # that of an earlier start, or of the job that this one was submitted from
    end=$(squeue --noheader --jobs "$SLURM_JOB_ID" --format %e 2>/dev/null | head -n 1) || return 0
    end=$(date --date "$end" +%s 2>/dev/null) || return 0 # no limit
    export HPCRL_END_TIME=$end
}

# Queue this job again, unless it is being cancelled, or Slurm does it anyway.
requeue() {
    local id=$SLURM_JOB_ID state
    state=$(squeue --noheader --jobs "$id" --format %T 2>/dev/null | head -n 1) || true
    [[ ${state:-RUNNING} == RUNNING ]] || return 0
    if [[ -n ${SLURM_ARRAY_JOB_ID:-} ]]; then
        id=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
    fi
    unstage
    if scontrol requeue "$id"; then
        echo "$(date -Is) before its end: queued again"
        exit 0
    fi
    echo "$(date -Is) before its end, but could not be queued again: submit this script once more" >&2
}
