#!/bin/sh
# agent.sh [-x] HOST COMMAND...: what ssh does, on an imitated host. HPCRL_TEST_HOSTS is the list "h1=PID h2=PID ...".
[ "$1" = -x ] && shift
host=$1
shift
for entry in $HPCRL_TEST_HOSTS; do
    if [ "${entry%%=*}" = "$host" ]; then
        exec nsenter --target "${entry#*=}" --net --uts --mount --ipc -- sh -c "$*"
    fi
done
echo "agent.sh: no host $host among: $HPCRL_TEST_HOSTS" >&2
exit 255
