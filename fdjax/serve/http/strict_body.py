"""`Body`: what is sent, read strictly: no field is guessed, none is skipped."""

from typing import Any, cast

from pydantic import BaseModel, ConfigDict, model_validator

from fdjax.serve.http.errors import ApiError


class Body(BaseModel):
    """What all bodies share; `null` is as good as leaving a field out."""

    # `_knows_all` forbids what is unknown.
    model_config = ConfigDict(
        strict=True,
        extra="ignore",
        allow_inf_nan=False,
        json_schema_extra={"additionalProperties": {"type": "null"}},
    )

    @model_validator(mode="before")
    @classmethod
    def _knows_all(cls, fields: Any) -> Any:
        """Refuses the first unknown field: pydantic would list a million of them."""
        if isinstance(fields, dict):
            for name, value in cast("dict[Any, Any]", fields).items():
                if value is None:
                    continue
                if str(name).startswith("guided_"):
                    raise ApiError(
                        f"{name[:100]} is not supported; use structured_outputs, as in "
                        "vLLM since 0.12",
                        param=name[:100],
                    )
                if name not in cls.model_fields:
                    raise ApiError(
                        f"{str(name)[:100]} is not supported; leave it out",
                        param=str(name)[:100],
                    )
        return fields
