"""Every exception nanoserve raises on purpose.

```
NanoserveError
├── OptionError                  a flag or field is impossible              exit 2
│   └── KernelError              why there are no native operators here     exit 2
├── ModelError
│   ├── UnsupportedModelError    names the architecture and the known ones  exit 3
│   ├── CorruptFileError         path, offset, expected, found              exit 3
│   ├── ModelNotFoundError       a name that leads to no model              exit 3
│   └── WeightMismatchError      missing, left-over and misshapen tensors   exit 3
├── PlanError
│   ├── DoesNotFitError          need and have in bytes, and what would fit exit 4
│   └── CaptureTooSmall          the ceiling under one bucket, who set it   exit 4
├── BootError                    the stage that failed                      exit 5
│   └── BootUnsound              a boot payload that contradicts itself     exit 5
├── RequestError                 the client's mistake                       HTTP 4xx
│   ├── InvalidRequestError      field, value, allowed range                400
│   ├── PromptTooLongError       the limit, prompt and requested tokens     400
│   ├── UnauthorizedError        no API key, or a wrong one                 401
│   ├── UnknownModelError        the name, and what is served               404
│   ├── BodyTooLargeError        carries the limit in bytes                 413
│   └── QueueFullError           carries retry_after_s                      429
└── EngineError                  our mistake                                HTTP 5xx
    ├── EngineStoppedError       the loop is gone or going                  503
    └── InvariantError           a broken identity, both sides printed      500
```

An error carries data and makes its message from the data: what, why, what to do.
Callers test attributes, not text.
"""

from typing import ClassVar, Protocol

from nanoserve.units import format_bytes

_MAX_NAMES = 10  # names listed in a message before "and N more"


class NanoserveError(Exception):
    """Root of everything nanoserve raises on purpose."""

    exit_code: ClassVar[int] = 1


class OptionError(NanoserveError):
    """A flag or field has a value that cannot work."""

    exit_code = 2


class KernelError(OptionError):
    """Why native operators cannot be built, loaded or used; plain torch serves without them."""


class ModelError(NanoserveError):
    """The model cannot be served as it lies."""

    exit_code = 3


class UnsupportedModelError(ModelError):
    """The architecture, or one key of its config, is not supported."""

    def __init__(self, what: str, known: tuple[str, ...] = ()) -> None:
        self.what = what
        self.known = known
        supported = f" Supported: {', '.join(known)}." if known else ""
        super().__init__(f"{what}{supported}")


class CorruptFileError(ModelError):
    """A file contradicts its own format."""

    def __init__(self, path: str, problem: str, offset: int | None = None) -> None:
        self.path, self.problem, self.offset = path, problem, offset
        where = f" at byte {offset:,}" if offset is not None else ""
        super().__init__(f"{path} is damaged{where}: {problem} Download or convert it again.")


class ModelNotFoundError(ModelError):
    """A model name, path or hub id leads to nothing that can be loaded."""


class WeightMismatchError(ModelError):
    """The checkpoint's tensors are not the ones the model wants."""

    def __init__(
        self,
        path: str,
        missing: tuple[str, ...] = (),
        unexpected: tuple[str, ...] = (),
        misshapen: tuple[str, ...] = (),
    ) -> None:
        self.path = path
        self.missing, self.unexpected, self.misshapen = missing, unexpected, misshapen
        kinds = {"missing": missing, "left over": unexpected, "of the wrong shape": misshapen}
        parts = [f"{len(them)} {kind} ({_listed(them)})" for kind, them in kinds.items() if them]
        super().__init__(
            f"The tensors in {path} do not match the model its config describes: "
            f"{'; '.join(parts)}. Check that config and weights belong together."
        )


class PlanError(NanoserveError):
    """The plan cannot be made."""

    exit_code = 4


class Budget(Protocol):
    """A device's memory as named parts; see `plan.memory_budget`."""

    def part_bytes(self, name: str) -> int:
        """Return the bytes of one part; 0 where there is none of that name."""


class DoesNotFitError(PlanError):
    """Something needs more bytes than there are.

    `budget` divides the device as the refused plan would; `advice` was planned again.
    """

    def __init__(
        self,
        what: str,
        need_bytes: int,
        have_bytes: int,
        advice: tuple[str, ...] = (),
        budget: Budget | None = None,
    ) -> None:
        self.what, self.advice, self.budget = what, advice, budget
        self.need_bytes, self.have_bytes = need_bytes, have_bytes
        would_do = f" Any one of these would do: {'; '.join(advice)}." if advice else ""
        super().__init__(
            f"{what} It needs {format_bytes(need_bytes)}; "
            f"{format_bytes(have_bytes)} is available.{would_do}"
        )


class CaptureTooSmall(PlanError):
    """The capture list's ceiling is under one bucket.

    Attributes:
        bound_by: What set the ceiling: `flag`, `bytes` or `limit`.
        have: What it was set to: tokens of the flag, bytes of the budget, or graphs.
        need: The least that gives one bucket, in the same unit.
        advice: Flags that were planned again.
    """

    def __init__(self, bound_by: str, have: int, need: int, advice: tuple[str, ...] = ()) -> None:
        self.bound_by, self.have, self.need, self.advice = bound_by, have, need, advice
        what = {
            "flag": f"--warm-width {have:,} is narrower than one bucket of {need:,} tokens",
            "bytes": f"{have:,} bytes for capture are fewer than the {need:,} of one bucket",
            "limit": f"--capture-limit {have:,} is under the {need:,} graphs of one bucket",
        }[bound_by]
        would_do = f" Any one of these would do: {'; '.join(advice)}." if advice else ""
        super().__init__(f"No decode step can be captured: {what}.{would_do}")


class BootError(NanoserveError):
    """A boot stage failed."""

    exit_code = 5

    def __init__(self, stage: str, problem: str) -> None:
        self.stage, self.problem = stage, problem
        super().__init__(f"Boot stopped at '{stage}': {problem}")


class BootUnsound(BootError):
    """What a boot says of itself contradicts itself, or its parts do not fit together."""


class RequestError(NanoserveError):
    """The client asked for something that cannot be answered."""

    status_code: ClassVar[int] = 400
    code: ClassVar[str | None] = None

    def __init__(self, message: str, param: str | None = None) -> None:
        self.param = param
        super().__init__(message)


class InvalidRequestError(RequestError):
    """A field has a value outside what is allowed."""


class PromptTooLongError(RequestError):
    """Prompt and requested tokens together pass the limit."""

    code = "context_length_exceeded"

    def __init__(
        self,
        limit_tokens: int,
        prompt_tokens: int,
        requested_tokens: int,
        param: str | None = None,
        *,
        is_counted: bool = True,
    ) -> None:
        """Make the message, in OpenAI's words: clients know the error by how it begins.

        Args:
            limit_tokens: Most tokens of prompt and output together.
            prompt_tokens: Tokens of the prompt.
            requested_tokens: Most tokens of the output.
            param: The field at fault.
            is_counted: False where `prompt_tokens` is the least that so long a text can have.
        """
        self.limit_tokens = limit_tokens
        self.prompt_tokens, self.requested_tokens = prompt_tokens, requested_tokens
        total = f" and asks for {requested_tokens} more ({prompt_tokens + requested_tokens} in all)"
        super().__init__(
            f"This model's maximum context length is {limit_tokens} tokens. The request has "
            f"{'' if is_counted else 'at least '}{prompt_tokens} prompt tokens"
            f"{total if is_counted else ''}. Shorten the prompt or lower max_tokens.",
            param,
        )


class UnauthorizedError(RequestError):
    """The request has no valid API key."""

    status_code = 401
    code = "invalid_api_key"

    def __init__(self) -> None:
        super().__init__("The request has no valid API key. Send 'Authorization: Bearer KEY'.")


class UnknownModelError(RequestError):
    """The request names a model that is not served here."""

    status_code = 404
    code = "model_not_found"

    def __init__(self, model: str, served: tuple[str, ...]) -> None:
        self.model = model
        self.served = served
        super().__init__(
            f"The model {model!r} is not served here. Served: {', '.join(served)}.", "model"
        )


class BodyTooLargeError(RequestError):
    """The request body has more bytes than are read."""

    status_code = 413
    code = "body_too_large"

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        super().__init__(
            f"The request body is larger than {format_bytes(limit_bytes)}, the most this server "
            "reads. Send fewer or shorter prompts."
        )


class QueueFullError(RequestError):
    """Too much is in flight: requests, or prompt tokens that wait."""

    status_code = 429
    code = "queue_full"
    retry_after_s: ClassVar[int] = 1

    def __init__(self, in_flight: int, limit: int, what: str = "requests") -> None:
        self.in_flight = in_flight
        self.limit = limit
        super().__init__(
            f"{in_flight} {what} are in flight and the limit is {limit}. "
            f"Try again in {self.retry_after_s} s."
        )


class EngineError(NanoserveError):
    """The engine failed the client."""

    status_code: ClassVar[int] = 500


class EngineStoppedError(EngineError):
    """The engine loop has stopped, or the server is shutting down."""

    status_code = 503


class InvariantError(EngineError):
    """A broken identity inside nanoserve: a bug, with both sides printed."""


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:_MAX_NAMES])
    more = len(names) - _MAX_NAMES
    return f"{shown} and {more} more" if more > 0 else shown
