"""References: what a field of a step names in graphs.yaml or under examples/, and how a kit opens it.

A reference is a frozen dataclass, as a step is. What decides what it gives is its identity; where it lies is
not. Knows neither a file format nor a server: each type opens its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeAlias, TypeVar

from raypipe.core.conf import Conf
from raypipe.core.config import Resolve, Where
from raypipe.core.errors import ConfError

if TYPE_CHECKING:
    from raypipe.core.protocols import Embed, Model

T = TypeVar("T")

Request: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
"""Path and body of a request to a server -> its result, null included."""


def domain_of(path: str) -> str:
    """Names the domain that a request is about, as refresh periods do; "" where the path names none.

    >>> domain_of("/sports/nba/get_games_on_date")
    'sports'
    """
    return path[1:].partition("/")[0]


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of graphs.yaml that says where a file lies."""

    kind: str
    where: str = ""  # file, folder or address; "": `--graph NAME=WHERE` says it


@dataclass(frozen=True, slots=True)
class EntryContext:
    """The configuration around an entry: what its fields may name."""

    files: Conf
    resolve: Resolve
    where: Where  # of the entry in graphs.yaml


@dataclass(frozen=True, slots=True)
class Tools:
    """The parts of a kit that a reference is opened with."""

    embedder: Callable[[Model], Embed]
    clock: Callable[[], float]  # seconds, from any origin
    close_later: Callable[[Callable[[], Awaitable[None]]], None]  # what is called when the kit is closed


@dataclass(frozen=True, slots=True)
class Reference(Generic[T]):
    """An entry of graphs.yaml, resolved. A kit gives what `open` makes of it, a T."""

    name: str  # in graphs.yaml; not identity
    where: str  # file, folder or address; "": not known; not identity
    version: str  # of its content: a digest, or what the entry declares

    kinds: ClassVar[tuple[str, ...]]  # of its entries: `kind` in graphs.yaml
    about: ClassVar[str]  # what one is, for messages: "a graph"
    place: ClassVar[str]  # says what `--graph NAME=` takes, and whence: "FILE; `mytool build` makes one"
    entry: ClassVar[type[Any]] = Entry  # a dataclass, as graphs.yaml has it
    is_evidence: ClassVar[bool] = True
    """Answers rest on it, as on a graph's rows: fitted numbers hold for other content under the same name.
    False for what only shows how to answer, as examples do."""

    @classmethod
    def of_entry(cls, name: str, entry: Any, place: str, context: EntryContext) -> Self:
        """Makes the reference of an entry at the place that is said; "": it can be named and not opened."""
        if not place:
            return cls(name, "", "nowhere")
        path = Path(place).absolute()  # workers may stand elsewhere
        return cls(name, str(path), cls.version_at(path))

    @classmethod
    def lies_at(cls, entry: Any, place: str) -> bool:
        """Says whether a place that `--graph` gives without a name is meant for this entry."""
        return False

    @classmethod
    def version_at(cls, path: Path) -> str:
        """Names the content of a file or folder. Raises DataError for one that cannot be read."""
        raise NotImplementedError

    def open(self, tools: Tools) -> T:
        """Opens it. Raises as `require`, and OSError where a file cannot be read."""
        raise NotImplementedError

    def require(self) -> None:
        """Raises ConfError for an unknown place and for content that the recipe was not resolved with,
        DataError for files that are none."""
        self.require_place()
        self.require_version(self.version_at(Path(self.where)))

    def identity(self) -> tuple[object, ...]:
        """Gives the values that are its identity."""
        return (self.version,)

    def periods(self) -> Mapping[str, float] | None:
        """Domain -> seconds that replies to its requests hold; those of other domains never change. None: it
        sends no requests."""
        return None

    def through(self, opened: T, wrap: Callable[[Request], Request], embedder: Callable[[Model], Embed]) -> T:
        """Gives the same, opened, with its requests going through a wrapper, as a memo's, and with vectors
        from this function; where it has any."""
        return opened

    def title(self) -> str:
        """Names it in messages."""
        return f"{self.about.removeprefix('a ')} {self.name!r}"

    def require_place(self) -> None:
        """Raises ConfError for a reference whose place is not known."""
        if not self.where:
            raise ConfError(f"{self.title()}: expected a location, as --graph {self.name}={self.place}")

    def require_version(self, found: str) -> None:
        """Raises ConfError for files that are not those that a recipe was resolved with: another process may
        see other files under the same path, and a release outlives an edit."""
        if found != self.version:
            raise ConfError(
                f"{self.title()}: {self.where} is not what the recipe was resolved with: expected "
                f"{self.version}, found {found}. Put back what was there, and the same on every machine; or "
                f"start again, and for a release run eval and promote again"
            )


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
