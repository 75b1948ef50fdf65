#!/usr/bin/env -S python3 -IS
"""`sudo [-n] [-E] [--] COMMAND...` inside an emulated machine: PID 1 runs it as root, for the users who may."""

from __future__ import annotations

import json
import os
import socket
import sys


def main() -> None:
    """Exits as the command does; 1 without permission, as sudo."""
    with open("/proc/self/comm", "w") as file:  # noqa: PTH123  # quick start
        file.write("sudo")
    argv = sys.argv[1:]
    while argv and argv[0].startswith("-"):
        if argv.pop(0) == "--":
            break
    if not argv:
        sys.exit("usage: sudo [-n] [-E] [--] command")
    env = {**os.environ, "HOME": "/root", "USER": "root", "LOGNAME": "root"}  # noqa: TID251  # inside a machine
    memory = os.memfd_create("request")
    with os.fdopen(memory, "w", closefd=False) as file:
        json.dump({"argv": argv, "cwd": os.getcwd(), "env": env}, file)  # noqa: PTH109  # as it is
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        try:
            peer.connect("/run/machine.sudo")
            socket.send_fds(peer, [b'{"id": 1}'], [memory, 0, 1, 2])
            while data := peer.recv(65536):
                answer = json.loads(data)
                if "exit" in answer:
                    sys.exit(answer["exit"])
        except OSError:
            pass
    sys.exit("sudo: a password is required")


if __name__ == "__main__":
    main()
