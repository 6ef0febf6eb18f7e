"""Examples for a prompt: what the step `examples` chooses from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class ShownExample:
    compared: str  # what the question is compared with
    text: str  # as the prompt shows it
    group: str  # of a group one example is shown at most
    document: str  # that it asks about; "": none


class ExampleFile(ABC):
    """Examples in a form of their own: what a file under examples/ holds. A plugin registers its form."""

    FOLDER: ClassVar[str] = "examples"  # of conf

    @abstractmethod
    def count(self) -> int:
        """Says how many examples there are."""

    @abstractmethod
    def shown(self) -> Sequence[ShownExample]:
        """Gives the examples, in the order of the file."""
