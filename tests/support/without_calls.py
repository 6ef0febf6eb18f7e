"""Python in a process that has no such call: `python without_calls.py NAME PROGRAM ARGUMENTS`.

`link`: the kernel refuses hard links, as on FAT, exFAT and some of FUSE. `flock`: it locks nothing and says
that it did, as some network file systems do. Exit code 77: this kernel takes no such filter."""

import ctypes
import errno
import platform
import struct
import sys

NUMBERS = {
    "link": {"x86_64": (86, 265), "aarch64": (37, 37)},  # link and linkat
    "flock": {"x86_64": (73, 73), "aarch64": (32, 32)},
}
RETURNS = {"link": errno.EPERM, "flock": 0}
NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2  # of prctl(2)
LOAD, EQUAL, RETURN, ALLOW, FAIL = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000  # of seccomp(2)


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def leave_out(name):
    one, other = NUMBERS[name].get(platform.machine()) or sys.exit(77)
    steps = [
        (LOAD, 0, 0, 0),
        (EQUAL, 1, 0, one),
        (EQUAL, 0, 1, other),
        (RETURN, 0, 0, FAIL | RETURNS[name]),
        (RETURN, 0, 0, ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = Program(len(steps), ctypes.addressof(code))
    prctl = ctypes.CDLL(None).prctl
    if prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) or prctl(SECCOMP, FILTER, ctypes.byref(program)):
        sys.exit(77)


if __name__ == "__main__":
    _, name, program, *sys.argv[1:] = sys.argv
    leave_out(name)
    exec(program)
