"""Variables that override an aggregator's configuration: text, read strictly as what their key holds.

Reads; which keys there are, and what is allowed, config says.
"""

import re
from typing import Any, Final, get_args

from fleetcount_transport.toml_table import ConfigError
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

__all__ = ["PREFIX", "ConfigError", "Environment", "model_in", "shown"]

PREFIX: Final = "FLEETCOUNT_"
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)


class Environment(PydanticBaseSettingsSource):
    """The variables FLEETCOUNT_TABLE__KEY: all of them text, read as the number or the truth value their key holds."""

    def __init__(self, settings_cls: type[BaseSettings], texts: PydanticBaseSettingsSource) -> None:
        super().__init__(settings_cls)
        self._texts = texts

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Return one table as the variables have it."""
        return self._texts.get_field_value(field, field_name)

    def __call__(self) -> dict[str, Any]:
        """Return every table of which a variable says something.

        Raises:
            ConfigError: a variable that is no number or truth value where its key holds one.
        """
        return {name: self._read(name, value) for name, value in self._texts().items()}

    def _read(self, name: str, values: Any) -> Any:
        field = self.settings_cls.model_fields.get(name)
        table = None if field is None else model_in(field.annotation)
        if table is None or not isinstance(values, dict):
            return values
        fields: dict[str, FieldInfo] = table.model_fields
        return {
            key: _read_text(f"{name}__{key}", value, fields[key].annotation) if key in fields else value
            for key, value in values.items()
        }


def _read_text(name: str, value: Any, wanted: Any) -> Any:
    """Return what a variable says for a key that holds a `wanted`; what is no text, or wanted as text, stays."""
    if not isinstance(value, str) or wanted not in {int, bool}:
        return value
    if wanted is bool and value in {"true", "false"}:
        return value == "true"
    if wanted is int and _WHOLE.fullmatch(value):
        return int(value)
    allowed = "true or false" if wanted is bool else "a whole number"
    raise ConfigError(f"{PREFIX}{name.upper()} is {shown(value)}; allowed is {allowed}")


def shown(value: object) -> str:
    """Return a value as a message shows it, at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def model_in(annotation: Any) -> Any:
    """Return the table inside a field's annotation, None when it holds none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return (
        next(found for found in map(model_in, get_args(annotation)) if found is not None)
        if get_args(annotation)
        else None
    )
