"""The base of every request model: no coercion, no unknown field, bounded work.

Owns how a wrong field is named. Which fields there are is said in `protocol`,
`chat_protocol` and `token_routes`.
"""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from nanoserve.errors import InvalidRequestError

MAX_FIELDS = 64  # of one object; a body has at most 55 that are known

T = TypeVar("T")

ListOf = Annotated[list[T], Field(fail_fast=True)]  # one error, not one per item


def check_num_members(value: Any, limit: int, what: str) -> Any:
    """Refuse a huge object as a whole: pydantic would collect an error per member."""
    if isinstance(value, dict) and len(value) > limit:
        raise too_many(len(value), what, "object", limit)
    return value


def too_many(count: int, what: str, owner: str, limit: int) -> PydanticCustomError:
    """Return the error of a bound that is passed."""
    text = "has {count} {what}; one {owner} may have {limit}"
    return PydanticCustomError(
        "too_many", text, {"count": count, "what": what, "owner": owner, "limit": limit}
    )


class StrictModel(BaseModel):
    """No coercion ("0.7" is no number, true is no int) and no unknown field."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_num_fields(cls, value: Any) -> Any:
        return check_num_members(value, MAX_FIELDS, "fields")


Fields = TypeVar("Fields", bound=StrictModel)


def validate_fields(model: type[Fields], value: dict[str, Any]) -> Fields:
    """Check a parsed body against a request model.

    Raises:
        InvalidRequestError: Names the first wrong field and what it must be.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        raise _invalid(details) from None


def _invalid(details: list[ErrorDetails]) -> InvalidRequestError:
    """Make one error of the first wrong field; a union names what each arm wanted."""
    first = details[0]
    if not first["loc"]:
        message = f"The request body {first['msg']}."
        return InvalidRequestError(message)
    field = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        message = (
            f"Unknown field '{_path(first)}'. It is refused because it might change the answer."
        )
        return InvalidRequestError(message, _path(first))
    wishes = [detail for detail in details if detail["loc"][:1] == (field,)]
    problems = dict.fromkeys(f"{_path(detail)}: {detail['msg']}" for detail in wishes[:4])
    return InvalidRequestError(f"{'; or '.join(problems)}.", field)


def _path(detail: ErrorDetails) -> str:
    """Return the place of an error without pydantic's names for the arms of a union."""
    steps = [str(step) for step in detail["loc"]]
    return ".".join(step for step in steps if step not in ("str", "int") and "[" not in step)
