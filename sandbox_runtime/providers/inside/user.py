"""How root becomes the agent's user. Part of the run.py of clouds: standard library only, and nothing newer than Python 3.9."""

from __future__ import annotations

import ctypes
import os

# Source: Linux, include/uapi/linux/prctl.h and capability.h.
_SET_NO_NEW_PRIVS, _CAPBSET_DROP = 38, 24
_MAX_CAPABILITIES = 64
_CAPABILITY_VERSION_3 = 0x20080522


def become(user: int) -> None:
    """Another than root, for good: no capability is left, none can be got, and sudo does nothing."""
    for number in (1, 2):
        os.fchown(number, user, user)  # so that it can be opened by name
    libc = ctypes.CDLL(None)
    for capability in range(_MAX_CAPABILITIES):
        libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    libc.capset(ctypes.byref(header), bytes(24))
    libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
