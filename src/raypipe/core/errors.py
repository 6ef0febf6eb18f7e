"""An exception type per action of the caller, each with its exit code."""

from __future__ import annotations

import errno


class RaypipeError(Exception):
    """A message says where, what was expected, what was found and what to do."""

    exit_code = 70


class ConfError(RaypipeError):
    """A recipe, model, cluster file or command-line argument is wrong."""

    exit_code = 2


class FieldsRefused(ConfError):
    """A server refuses fields of a chat that are from now on left out: the recipe is to be read again."""


class DataError(RaypipeError):
    """Input data cannot be used as a whole: a missing, truncated or mislabelled file."""

    exit_code = 3


class DiskFull(RaypipeError):
    """There is no room for what would be written. What is stored stays readable."""

    exit_code = 2


def is_full(error: BaseException) -> bool:
    """Returns whether an error says that a disk is full. Lance has no errno, only words."""
    return isinstance(error, OSError) and (
        error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left on device" in str(error)
    )


class ModelMissing(RaypipeError):
    """A model is named and is not here; the message has the command that gets it."""

    exit_code = 4


class FaultBudgetExceeded(RaypipeError):
    """More rows could not be done than a run may lose; everything that could be done is stored."""

    exit_code = 6


class CapReached(RaypipeError):
    """A run has spent what its command allows (--max-usd, ...); the same command continues what is stored."""

    exit_code = 8


class ClusterTooSmall(RaypipeError):
    """The plan needs more CPUs, GPUs or memory than the cluster has; the message has the numbers."""

    exit_code = 5


class Unavailable(RaypipeError):
    """A store, device, engine or service cannot be used now, which is no row's fault: omit its stage, or try
    again later. Raised where the call is made: only there is it known whose the trouble is."""

    exit_code = 69


class OutOfMemory(Unavailable):
    """A model had too little memory for a call: a smaller one may succeed."""


class WorkerBroken(Unavailable):
    """This process cannot compute: its device failed, or a model cannot be loaded. Another one may."""


class Overloaded(RaypipeError):
    """More is waiting than can be done soon: ask again after a while."""


class LawBroken(DataError):
    """A step does not do what every step must (`recipes.laws`): a defect in it, and no row's fault."""
