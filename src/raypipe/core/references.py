"""References: entries of graphs.yaml or files under examples/, which a step's field names.

A kit (a step's access to models and data) opens a reference. A reference is a frozen dataclass. Its identity
covers all that decides the content, not the location.
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
"""(path, body) of a request to a server -> the result, which may be null."""


def domain_of(path: str) -> str:
    """Returns the domain of a request's path: its first folder, or "". Refresh periods are set by domain.

    >>> domain_of("/sports/nba/get_games_on_date")
    'sports'
    """
    return path[1:].partition("/")[0]


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of graphs.yaml that locates a file."""

    kind: str
    where: str = ""  # file, folder or address; "": `--graph NAME=WHERE` gives it


@dataclass(frozen=True, slots=True)
class EntryContext:
    """Configuration around an entry, to which the entry's fields may refer."""

    files: Conf
    resolve: Resolve
    where: Where  # place of the entry in graphs.yaml


@dataclass(frozen=True, slots=True)
class Tools:
    """Functions of a kit that a reference may use when it is opened."""

    embedder: Callable[[Model], Embed]
    clock: Callable[[], float]  # seconds, from any origin
    close_later: Callable[[Callable[[], Awaitable[None]]], None]  # gets a function to call on closing


@dataclass(frozen=True, slots=True)
class Reference(Generic[T]):
    """A resolved entry of graphs.yaml. T is the type of its opened content, which `open` returns."""

    name: str  # in graphs.yaml; not identity
    where: str  # file, folder or address; "": not known; not identity
    version: str  # version of its content: a digest, or what the entry declares

    kinds: ClassVar[tuple[str, ...]]  # values of `kind` in graphs.yaml for its entries
    about: ClassVar[str]  # noun for it in messages: "a graph"
    place: ClassVar[str]  # value after `--graph NAME=` and its origin: "FILE; `mytool build` makes one"
    entry: ClassVar[type[Any]] = Entry  # dataclass of its entries in graphs.yaml
    is_evidence: ClassVar[bool] = True
    """True: answers rest on the content, such as a graph's rows; numbers fitted with one content are used
    with all contents of the same name. False: the content only shows how to answer, as examples do."""

    @classmethod
    def of_entry(cls, name: str, entry: Any, place: str, context: EntryContext) -> Self:
        """Makes the reference of an entry. `place` is the location of the content; "" means unknown, so the
        reference cannot be opened. Raises DataError if the content cannot be read."""
        if not place:
            return cls(name, "", "nowhere")
        path = Path(place).absolute()  # a worker may have another working directory
        return cls(name, str(path), cls.version_at(path))

    @classmethod
    def lies_at(cls, entry: Any, place: str) -> bool:
        """Returns whether `place`, which `--graph` gives without a name, fits the entry; here False."""
        return False

    @classmethod
    def version_at(cls, path: Path) -> str:
        """Returns the version of a file's or folder's content. Raises DataError if it cannot be read."""
        raise NotImplementedError

    def open(self, tools: Tools) -> T:
        """Opens the content. Raises as `require` does, and OSError if a file cannot be read."""
        raise NotImplementedError

    def require(self) -> None:
        """Raises ConfError if the location is unknown, or if the content is not the one with which the recipe
        was resolved. Raises DataError if the content cannot be read."""
        self.require_place()
        self.require_version(self.version_at(Path(self.where)))

    def identity(self) -> tuple[object, ...]:
        return (self.version,)

    def periods(self) -> Mapping[str, float] | None:
        """Returns the seconds after which cached replies expire, by domain of the request. Replies of other
        domains never expire. Returns None if the reference sends no requests."""
        return None

    def through(self, opened: T, wrap: Callable[[Request], Request], embedder: Callable[[Model], Embed]) -> T:
        """Returns `opened` with its requests sent through `wrap`, such as a cache, and its vectors made by
        `embedder`. Here it returns `opened` unchanged, because it has neither."""
        return opened

    def title(self) -> str:
        return f"{self.about.removeprefix('a ')} {self.name!r}"

    def require_place(self) -> None:
        if not self.where:
            raise ConfError(f"{self.title()}: expected a location, as --graph {self.name}={self.place}")

    def require_version(self, found: str) -> None:
        """Raises ConfError if `found` is not the version of the resolved recipe. Another process may see
        other files under the same path, and a release outlives an edit."""
        if found != self.version:
            raise ConfError(
                f"{self.title()}: {self.where} is not what the recipe was resolved with: expected "
                f"{self.version}, found {found}. Restore it on every machine, or run the command again; for "
                f"a release, run eval and promote again"
            )


@dataclass(frozen=True, slots=True)
class ShownExample:
    compared: str  # the text to compare with the question
    text: str  # as the prompt shows it
    group: str  # at most one example of a group is shown
    document: str  # document that it asks about; "": none


class ExampleFile(ABC):
    """Examples for prompts, from a file under examples/. A plugin registers the file's format."""

    FOLDER: ClassVar[str] = "examples"  # folder under conf

    @abstractmethod
    def count(self) -> int: ...

    @abstractmethod
    def shown(self) -> Sequence[ShownExample]:
        """Returns the examples, in the order of the file."""
