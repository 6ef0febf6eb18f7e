"""Exception types, one for each way in which a caller can react. Each has an exit code; some share one."""

from __future__ import annotations

import errno


class RaypipeError(Exception):
    """Base of all errors. The message says where, what was expected, what was found and what to do."""

    exit_code = 70


class ConfError(RaypipeError):
    """A wrong recipe, models file, cluster file, command-line argument or installation."""

    exit_code = 2


class FieldsRefused(ConfError):
    """A server's refusal of fields in chats. They are recorded: a recipe that is read again omits them."""


class DataError(RaypipeError):
    """Input data that cannot be used as a whole, such as a missing, truncated or mislabelled file."""

    exit_code = 3


class DiskFull(RaypipeError):
    """A disk without room for a write. Stored data stay readable."""

    exit_code = 2


def is_full(error: BaseException) -> bool:
    """Returns whether an error means that a disk is full. Errors of Lance have no errno, only a text."""
    return isinstance(error, OSError) and (
        error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left on device" in str(error)
    )


def unstopped(error: BaseException) -> str:
    """Returns an error's message without the full stop at its end, for a message that goes on after it.

    >>> unstopped(OSError("Corrupt snappy compressed data."))
    'Corrupt snappy compressed data'
    """
    return str(error).rstrip(". \n")


class ModelMissing(RaypipeError):
    """A named model or adapter that is not on this machine. The message has the command that gets it."""

    exit_code = 4


class FaultBudgetExceeded(RaypipeError):
    """More failed rows than a run may lose. All rows that succeeded are stored."""

    exit_code = 6


class CapReached(RaypipeError):
    """A run that has reached a cap of its command (--max-usd, ...). The same command continues its work."""

    exit_code = 8


class ClusterTooSmall(RaypipeError):
    """A cluster with fewer CPUs or GPUs, or less memory, than the plan needs. The message has the numbers."""

    exit_code = 5


class Unavailable(RaypipeError):
    """A store, device, engine or service that cannot be used at the moment. No row is to blame: omit the
    stage, or try again later. Raised at the call itself, where the cause is known."""

    exit_code = 69


class OutOfMemory(Unavailable):
    """Too little memory for a model's call. A smaller call may succeed."""


class WorkerBroken(Unavailable):
    """Raised when this process cannot compute: its device failed, or a model cannot be loaded. Another
    process may succeed."""


class Overloaded(RaypipeError):
    """A service with more waiting requests than it can serve soon. A later try may succeed."""


class LawBroken(DataError):
    """A defect in a step: it breaks a law that holds for all steps (`recipes.laws`). No row is to blame."""
