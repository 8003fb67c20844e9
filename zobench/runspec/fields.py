"""A field of a spec: what is declared of it once, and how its values are checked, read from text and shown.

The declarations stand in the dataclass itself (:mod:`zobench.runspec.run`) as metadata; every list of fields anywhere
is a comprehension over them. Each class here is one type of value.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from types import NoneType
from typing import Any, ClassVar, Generic, TypeVar

from zobench.runspec.options import Option, Options, check_scalar, read_options, read_scalar
from zobench.runspec.registry import Registry, resolve
from zobench.runspec.words import suggestion

T = TypeVar("T")


class LabelForm(enum.Enum):
    """The form in which a label shows a field that is not at its default."""

    NEVER = enum.auto()
    VALUE = enum.auto()  # ``counter``
    PAIR = enum.auto()  # ``slots=2``
    SWITCH = enum.auto()  # ``compile``, ``no_overlap``
    CONTRAST = enum.auto()  # ``steps=2``, but only beside another that differs in nothing else


_NOUNS = {bool: "switch", float: "number", int: "integer", str: "text", NoneType: "none"}


@dataclass(frozen=True)
class SpecField(Generic[T]):
    """The declaration of a field. ``default``: of a field that must be given, an example. ``about``: one line.

    ``always_hashed``: it is in every hash, as the fields of the first stored results are; any other is in a hash only
    where it is not at its default, so that results from before it keep their names. ``remedy`` ends the error about a
    value out of range. ``label`` and ``order``: how and where a label shows it, lower orders first.

    ``free``: a table shows runs with any value of it. ``incidental``: two values of it measure the same thing.
    ``of_task``: curves of one figure may differ in it. ``listed``: a list of runs has a column for it where it is
    unusual. ``paced``: runs that differ in it say nothing about each other's speed. ``ablated``: a mechanism of ZO2's
    that its table 3 switches off alone. ``unhashed``: it only says how or where; it is in no hash.
    """

    default: T
    about: str
    _: KW_ONLY
    always_hashed: bool = False
    name: str = ""
    required: bool = False
    remedy: str = ""
    label: LabelForm = LabelForm.PAIR
    order: int = 3
    free: bool = False
    incidental: bool = False
    of_task: bool = False
    listed: bool = False
    paced: bool = False
    ablated: bool = False
    unhashed: bool = False

    size: ClassVar[bool] = False  # whether it is in bytes, which text may give with a unit

    def names(self, value: T) -> bool:
        """Whether ``value`` is an entry of a registry, which may take options."""
        return False

    @property
    def types(self) -> tuple[type, ...]:
        """The types of its values."""
        return (type(self.default),)

    @property
    def noun(self) -> str:
        """The type of its values, for people."""
        return " or ".join(_NOUNS[kind] for kind in self.types)

    @property
    def choices(self) -> tuple[str, ...]:
        """All values of a word from a list; else empty."""
        return ()

    def check(self, value: Any) -> Any:
        """``value`` as a spec holds it. Raises ``ValueError`` for a wrong type, an unknown word, or out of range."""
        if (isinstance(value, bool) and bool not in self.types) or not isinstance(value, self.types):
            names = " or ".join("none" if kind is NoneType else kind.__name__ for kind in self.types)
            usual = str(self.default).lower() if isinstance(self.default, bool) else repr(self.default)
            raise ValueError(
                f"`{self.name}` must be of type {names}, but got {value!r}; for example {self.name}={usual}"
            )
        return value

    def parse(self, text: str) -> Any:
        """The value of ``--set name=text``, read as the field's type and not yet checked for its range."""
        return text.strip()

    def write(self, value: Any) -> str:
        """``value`` as ``--set`` takes it."""
        return str(value)

    def plain(self, value: Any) -> Any:
        """``value`` as JSON has it."""
        return value

    def shown(self, value: Any) -> str:
        """``value`` for people."""
        return str(value)

    def words(self, value: Any) -> list[str]:
        """The words of a label that show ``value``."""
        written = {
            LabelForm.NEVER: [],
            LabelForm.VALUE: [self.shown(value)],
            LabelForm.PAIR: [f"{self.name}={self.write(value) if self.size else value}"],
            LabelForm.SWITCH: [self.name if value else f"no_{self.name}"],
            LabelForm.CONTRAST: [f"{self.name}={self.write(value)}"],
        }
        return written[self.label]

    def options(self, value: str) -> Mapping[str, Option]:
        """Returns the declared options of the plug-in that ``value`` names."""
        return {}

    def origin(self, value: Any) -> str:
        """The package, version and fingerprint of the plug-in that gives what is called ``value``, or ""."""
        return ""

    def part(self, name: str) -> SpecField[Any] | None:
        """The field of the part ``name``, if this field has parts."""
        return None


@dataclass(frozen=True)
class TextField(SpecField[str]):
    """Any text of a ``form``, a regular expression which people call ``form_noun``."""

    form: str = ".*"
    form_noun: str = "text"

    def check(self, value: Any) -> str:
        value = super().check(value)
        if not re.fullmatch(self.form, value, re.DOTALL):
            raise ValueError(f"`{self.name}` must be {self.form_noun}, but got {value!r}; {self.remedy}")
        return str(value)


@dataclass(frozen=True)
class WordField(SpecField[str]):
    """A word of ``allowed``."""

    allowed: tuple[str, ...] = ()
    noun = "word"

    @property
    def choices(self) -> tuple[str, ...]:
        return self.allowed

    def check(self, value: Any) -> str:
        value = super().check(value)
        if value != self.default and value not in (allowed := self.choices):
            raise ValueError(
                f"`{self.name}` must be one of {', '.join(allowed)}, but got {value!r}; {self.hint(value)}"
            )
        return str(value)

    def hint(self, value: str) -> str:
        """The end of the error about the unknown ``value``: the words that the user may have meant."""
        near = suggestion(value, self.choices)
        return near if near.endswith("?") else f"for example {self.name}={self.default}"


@dataclass(frozen=True)
class RegistryField(WordField):
    """A word of a registry, zobench's own or a plug-in's; ``before``: words that name nothing, as task=none."""

    registry: Registry[Any] = dataclasses.field(kw_only=True)
    before: tuple[str, ...] = ()

    def names(self, value: str) -> bool:
        return value not in self.before

    @property
    def choices(self) -> tuple[str, ...]:
        return (*self.before, *self.registry.names())

    def hint(self, value: str) -> str:
        """Returns a remedy for a name that none is near to: it may be a plug-in's, as in another machine's result."""
        for entry in self.registry.builtin():
            if value.lower() in getattr(entry, "known_as", ()):
                return f"{value} is {entry.name} here"
        near = super().hint(value)
        return near if near.endswith("?") else "if a package gives it, install that package"

    def options(self, value: str) -> Mapping[str, Option]:
        taken = getattr(self.registry.get(value), "options", {}) if self.names(value) else {}
        return {name: Option.of(declared) for name, declared in taken.items()}

    def origin(self, value: str) -> str:
        return self.registry.origin(value) if self.names(value) else ""


_DATA = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".txt")  # how the names of files of rows end
_IDENTITY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*@[0-9a-f]{12}")


@dataclass(frozen=True)
class FileField(RegistryField):
    """A word of a registry, or a TOML file of the user's: as a value it is ``NAME@FINGERPRINT``, which the function
    ``identity`` (``module:function``) has of the file's path. Such a value is good without the file."""

    identity: str = dataclasses.field(kw_only=True)
    suffix: ClassVar[str] = ".toml"

    def check(self, value: Any) -> str:
        if isinstance(value, str) and value.endswith(self.suffix):
            return str(resolve(self.identity)(value))
        return value if isinstance(value, str) and _IDENTITY.fullmatch(value) else super().check(value)

    def names(self, value: str) -> bool:
        return "@" not in value and not value.endswith(self.suffix) and super().names(value)

    def hint(self, value: str) -> str:
        if value.lower().endswith(_DATA):
            return f"that is data: `zobench task new {value}` makes a task of it (docs/data.md)"
        return super().hint(value)

    def shown(self, value: str) -> str:
        return value.partition("@")[0]  # without the fingerprint


@dataclass(frozen=True)
class SwitchField(SpecField[T]):
    """True or false; None too where that is the default."""

    label: LabelForm = LabelForm.SWITCH

    @property
    def types(self) -> tuple[type, ...]:
        return (bool, NoneType) if self.default is None else (bool,)

    def parse(self, text: str) -> bool | None:
        lowered, name = text.strip().lower(), self.name
        if NoneType in self.types and lowered in ("none", "default"):
            return None
        yes, no = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
        if lowered not in yes + no:
            raise ValueError(f"`{name}` must be true or false, but got {text!r}; write {name}=true or {name}=false")
        return lowered in yes

    def write(self, value: Any) -> str:
        return str(value).lower()


@dataclass(frozen=True)
class ScalarField(SpecField[Any]):
    """One option, ``options.name``: text, a number, true or false."""

    def check(self, value: Any) -> Any:
        return check_scalar(self.name, value)

    def parse(self, text: str) -> Any:
        return read_scalar(text)


@dataclass(frozen=True)
class TableField(SpecField[Mapping[str, Any]]):
    """Options by their names."""

    noun = "table"

    def check(self, value: Any) -> Options:
        if not isinstance(value, Mapping):
            raise ValueError(f"`{self.name}` must be a table, but got {value!r}; write {self.name}.NAME=VALUE")
        return Options.of({name: check_scalar(f"{self.name}.{name}", option) for name, option in value.items()})

    def parse(self, text: str) -> Any:
        return read_options(self.name, text)

    def plain(self, value: Mapping[str, Any]) -> dict[str, Any]:
        return dict(value)

    def words(self, value: Mapping[str, Any]) -> list[str]:
        return [f"{name}={option}" for name, option in value.items()]

    def part(self, name: str) -> ScalarField:
        return ScalarField(None, self.about, name=f"{self.name}.{name}")


_KEY = "zobench"


def declare(field: SpecField[T]) -> T:
    """A field of the dataclass, with its default and what is declared of it; one that is required has no default."""
    default: Any = dataclasses.MISSING if field.required else field.default
    made: T = dataclasses.field(default=default, metadata={_KEY: field})
    return made


def declared(spec: type[Any]) -> Mapping[str, SpecField[Any]]:
    """The fields of a spec's class by their names, in order."""
    return {
        field.name: dataclasses.replace(field.metadata[_KEY], name=field.name) for field in dataclasses.fields(spec)
    }


def field_of(fields: Mapping[str, SpecField[Any]], key: str) -> SpecField[Any]:
    """The field called ``key``, or the option ``options.NAME``. Raises ``ValueError``, which names the nearest."""
    name, _, part = key.partition(".")
    field = fields.get(name)
    match = field.part(part) if field is not None and part else field
    if match is None:
        raise ValueError(f"unknown key {key!r}; {field_suggestion(key, fields)}")
    return match


_OTHER_NAMES = {
    "learning_rate": "lr", "epsilon": "eps", "max_steps": "steps", "max_length": "seq_len", "precision": "dtype",
}  # fmt: skip
"""Other programs' names of fields."""


def field_suggestion(key: str, fields: Iterable[str]) -> str:
    """See :func:`suggestion`; a name of another program leads to the field that it means."""
    return suggestion(_OTHER_NAMES.get(key, key), fields)


def options_of(fields: Mapping[str, SpecField[Any]], values: Mapping[str, Any]) -> Mapping[str, Option]:
    """Returns the declared options of the plug-ins that ``values`` name; a field that is not given has its default."""
    options: dict[str, Option] = {}
    for name, field in fields.items():
        taken = field.options(values.get(name, field.default))
        if twice := sorted(options.keys() & taken.keys()):
            raise ValueError(
                f"`options.{twice[0]}` must be one plug-in's, but {name}={values[name]} and another that the run names "
                "both declare it; rename one of them"
            )
        options |= taken
    return options
