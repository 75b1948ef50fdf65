"""What all groups of settings share: how they are read, and checks that several of them make."""

from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, get_type_hints
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    PlainValidator,
    SecretStr,
    ValidationInfo,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from app.egress.hosts import Item, read_items


class SettingsGroup(BaseModel):
    """Settings of one concern. A field's alias is its name in the environment, its description says what it is for.

    `title` in a group's configuration is its heading where settings are listed.
    """

    model_config = ConfigDict(
        extra="ignore", frozen=True, populate_by_name=True, validate_default=True
    )

    @field_validator("*")
    @classmethod
    def _check_secret(cls, value: object, info: ValidationInfo) -> object:
        """Refuses what a header cannot carry: it would come back in an error of whoever sends it, in full. A private key is in none."""
        if isinstance(value, SecretStr) and not str(info.field_name).endswith("_private_key"):
            text = value.get_secret_value()
            if not text.isascii() or not text.isprintable() or " " in text:
                raise ValueError("has white space, or a character that no key has; copy it again")
        return value


def _check_url(value: str) -> str:
    if not value.startswith(("https://", "http://")):
        raise ValueError("must start with https:// or http://")
    if not urlsplit(value).hostname:
        raise ValueError("names no host")
    if "?" in value or "#" in value:
        raise ValueError("must end before ? and #: Orion puts its own paths behind it")
    return value


Url = Annotated[str, AfterValidator(_check_url)]


def existing_file(path: Path) -> Path:
    """Returns the file's whole path.

    Raises:
        ValueError: there is none.
    """
    if path.expanduser().is_dir():
        raise ValueError(f"a directory, not a file: {path}")
    if not path.expanduser().is_file():
        raise ValueError(f"no such file: {path}")
    return path.expanduser().resolve()


def whole_path(path: Path) -> Path:
    """Returns the path without `~`, links and `..`."""
    return path.expanduser().resolve()


def fields_of(group: type) -> Mapping[str, FieldInfo]:
    """Returns the settings of a group by their attributes; it is a `SettingsGroup`, or a dataclass with annotated fields."""
    if issubclass(group, BaseModel):
        return group.model_fields
    hints = get_type_hints(group, include_extras=True)
    return {
        one.name: FieldInfo.from_annotated_attribute(hints[one.name], one.default)
        for one in fields(group)  # type: ignore[arg-type] # a dataclass, whose type cannot be named
    }


def _read_hosts(value: object) -> object:
    words = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise ValueError("must be a list of hosts")
    return read_items(words)


Hosts = Annotated[tuple[Item, ...], PlainValidator(_read_hosts)]
"""Hosts that sandboxes may reach, and sets of them, as `app.egress.hosts` has them."""


def one_of(words: Collection[str]) -> AfterValidator:
    """Returns a check that a text is one of `words`, which are known only when this runs; else it is as `Literal`."""

    def check(word: str) -> str:
        if word not in words:
            *others, last = map(repr, words)
            expected = f"{', '.join(others)} or {last}"
            raise PydanticCustomError(
                "literal_error",
                "Input should be {expected}",
                {"expected": expected, "known": tuple(words)},
            )
        return word

    return AfterValidator(check)


class SettingsError(Exception):
    """Some settings are missing or wrong; the message lists all of them, a line each."""
