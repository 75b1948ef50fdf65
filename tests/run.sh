#!/bin/sh
# Runs the tests. Installs what the system tests need when it can (Debian or Ubuntu, as root); names what it leaves out.
# With CI=true nothing may be left out.
set -eu
cd "$(dirname "$0")/.."

try_install() { # command, package
    if command -v "$1" >/dev/null 2>&1; then return 0; fi
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then return 1; fi
    echo "installing $2 ..."
    apt-get install -y -qq "$2" >/dev/null 2>&1 ||
        { apt-get update -qq >/dev/null 2>&1 && apt-get install -y -qq "$2" >/dev/null 2>&1; }
}

left_out=""
leave_out() { # marker, reason
    if [ "${CI:-}" = true ]; then echo "CI must run everything, but: $2"; exit 1; fi
    echo "left out: tests marked $1 ($2)"
    left_out="${left_out:+$left_out and }not $1"
}

try_install bwrap bubblewrap || leave_out bubblewrap "bubblewrap is not installed"
# Debian keeps PostgreSQL's programs out of the PATH.
for programs in /usr/lib/postgresql/*/bin; do PATH="$PATH:$programs"; done
try_install initdb postgresql || leave_out postgresql "postgresql is not installed"
try_install chromium chromium || leave_out browser "chromium is not installed"

# The engine that is there, or one of our own, ended with the tests.
dockerd_pid=""
end_dockerd() {
    if [ -n "$dockerd_pid" ]; then kill "$dockerd_pid" 2>/dev/null || true; wait "$dockerd_pid" 2>/dev/null || true; fi
    dockerd_pid=""
}
start_docker() {
    if command -v docker >/dev/null 2>&1 && docker info >/dev/null 2>&1; then return 0; fi
    try_install dockerd docker.io && [ "$(id -u)" = 0 ] || return 1
    if docker info >/dev/null 2>&1; then return 0; fi # installing it may have started it
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

set -- ${TESTS:-tests}
if [ -n "$left_out" ]; then set -- "$@" -m "$left_out"; fi
# Beside each other, but for those marked `alone`. In a directory of a short name: sockets lie deep below it.
directory=$(mktemp -d "${TMPDIR:-/tmp}/o-XXXX")
.venv/bin/python -m pytest -n "${TEST_PROCESSES:-2}" --dist loadfile --basetemp "$directory/t" "$@"
rm -rf "$directory"
