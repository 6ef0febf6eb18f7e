"""Python in a process to which the kernel refuses hard links, as it does on FAT, exFAT and some of FUSE:
`python without_links.py PROGRAM ARGUMENTS`. Exit code 77: this kernel takes no such filter."""

import ctypes
import errno
import platform
import struct
import sys

LINKS = {"x86_64": (86, 265), "aarch64": (37, 37)}  # numbers of link and linkat
NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2  # of prctl(2)
LOAD, EQUAL, RETURN, ALLOW, FAIL = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000  # of seccomp(2)


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def refuse_links():
    link, linkat = LINKS.get(platform.machine()) or sys.exit(77)
    steps = [
        (LOAD, 0, 0, 0), (EQUAL, 1, 0, link), (EQUAL, 0, 1, linkat),
        (RETURN, 0, 0, FAIL | errno.EPERM), (RETURN, 0, 0, ALLOW),
    ]  # fmt: skip
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = Program(len(steps), ctypes.addressof(code))
    prctl = ctypes.CDLL(None).prctl
    if prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) or prctl(SECCOMP, FILTER, ctypes.byref(program)):
        sys.exit(77)


if __name__ == "__main__":
    refuse_links()
    _, program, *sys.argv[1:] = sys.argv
    exec(program)
