#!/bin/sh
# Runs the tests: those of each change, or with TEST_ALL=true also those marked `long`. Installs what they need when it can
# (Debian or Ubuntu, as root); names what it leaves out. With CI=true nothing may be left out but for the long ones.
set -eu
cd "$(dirname "$0")/.."

# What every worker, service and agent imports is compiled once, meanwhile, not by each of them at once; so is what pytest makes of the tests.
compile_imports() {
    (cd .venv/lib/python3*/site-packages && ../../../bin/python -m compileall -q -j 2 anthropic fastapi httpx hypothesis langfuse openai \
        opentelemetry pydantic slack_bolt slack_sdk sqlalchemy uvicorn) || true
    .venv/bin/python -m compileall -q app agent_scripts sandbox_runtime || true
    .venv/bin/python -m pytest -n 0 --collect-only -q ${TESTS:-tests} || true
}
compile_imports >/dev/null 2>&1 &
compiling_pid=$!

# Debian keeps PostgreSQL's programs out of the PATH.
postgresql_path() { for programs in /usr/lib/postgresql/*/bin; do PATH="$PATH:$programs"; done; }
has() { command -v "$1" >/dev/null 2>&1; }
install_packages() {
    if [ "$(id -u)" != 0 ] || ! has apt-get; then return 0; fi
    wanted=""
    pairs="bwrap:bubblewrap initdb:postgresql pgbouncer:pgbouncer chromium:chromium tmux:tmux dockerd:docker.io"
    if [ "${TEST_ALL:-}" = true ]; then pairs="$pairs docker-compose:docker-compose nginx:nginx go:golang-go prometheus:prometheus"; fi
    for pair in $pairs; do
        has "${pair%%:*}" || wanted="$wanted ${pair#*:}"
    done
    if [ -z "$wanted" ]; then return 0; fi
    echo "installing$wanted ..."
    apt-get install -y -qq $wanted >/dev/null 2>&1 && return 0
    apt-get update -qq >/dev/null 2>&1 || return 0
    # One by one when not all of them can be had.
    apt-get install -y -qq $wanted >/dev/null 2>&1 && return 0
    for package in $wanted; do apt-get install -y -qq "$package" >/dev/null 2>&1 || true; done
}

left_out=""
leave_out() { # marker, reason
    if [ "${CI:-}" = true ]; then echo "CI must run everything, but: $2"; exit 1; fi
    echo "left out: tests marked $1 ($2)"
    left_out="${left_out:+$left_out and }not $1"
}

postgresql_path
install_packages
postgresql_path
has bwrap || leave_out bubblewrap "bubblewrap is not installed"
has initdb || leave_out postgresql "postgresql is not installed"
has pgbouncer || leave_out pgbouncer "pgbouncer is not installed"
if [ "${TEST_ALL:-}" = true ]; then
    { has docker-compose && has nginx && has initdb; } || leave_out compose "docker-compose, nginx or postgresql is not installed"
fi
if [ "${TEST_ALL:-}" = true ]; then has prometheus || leave_out prometheus "prometheus is not installed"; fi
has chromium || leave_out browser "chromium is not installed"
has tmux || leave_out terminal "tmux is not installed"

# The engine that is there, or one of our own, ended with the tests.
dockerd_pid=""
end_dockerd() {
    if [ -n "$dockerd_pid" ]; then kill "$dockerd_pid" 2>/dev/null || true; wait "$dockerd_pid" 2>/dev/null || true; fi
    dockerd_pid=""
}
start_docker() {
    if has docker && docker info >/dev/null 2>&1; then return 0; fi
    has dockerd && [ "$(id -u)" = 0 ] || return 1
    dockerd >/dev/null 2>&1 &
    dockerd_pid=$!
    trap end_dockerd EXIT
    for _ in $(seq 30); do
        if docker info >/dev/null 2>&1; then return 0; fi
        if ! kill -0 "$dockerd_pid" 2>/dev/null; then break; fi
        sleep 1
    done
    end_dockerd
    return 1
}
if start_docker; then
    reason=$(.venv/bin/python -m tests.docker_image check)
    if [ -n "$reason" ]; then leave_out docker "$reason"; fi
else leave_out docker "no Docker engine answers, and none can be started"
fi

mount_dir=$(mktemp -d)
if mount -t tmpfs -o size=1m orion-test "$mount_dir" 2>/dev/null; then umount "$mount_dir"
else leave_out mounts "a file system can be mounted by root only"
fi
rmdir "$mount_dir"
[ "$(id -u)" = 0 ] || leave_out machines "emulated machines of clouds are booted by root only"

if [ "${TEST_ALL:-}" != true ]; then left_out="${left_out:+$left_out and }not long"; fi

wait "$compiling_pid"
# What takes a while to install is begun now; tests that need it wait for it.
if [ -z "${TESTS:-}" ] || [ "$TESTS" = tests ]; then
    if has bwrap; then .venv/bin/python -m tests.e2e.prepared >/dev/null 2>&1 & fi
fi

set -- ${TESTS:-tests}
if [ -n "$left_out" ]; then set -- "$@" -m "$left_out"; fi
if [ -n "${TEST_TIMES:-}" ]; then set -- "$@" --times "$TEST_TIMES"; fi
# Beside each other, but for those marked `alone`. In a directory of a short name: sockets lie deep below it.
directory=$(mktemp -d "${TMPDIR:-/tmp}/o-XXXX")
code=0
.venv/bin/python -m pytest -n "${TEST_PROCESSES:-4}" --dist loadfile --no-loadscope-reorder --basetemp "$directory/t" "$@" || code=$?
rm -rf "$directory"
exit "$code"
