"""The one error type that crosses the border to Go, and its kinds (milepost.Error and milepost.Kind)."""

KINDS = (
    "invalid",  # the input is wrong; the message names the place and what is allowed
    "not_found",  # something named does not exist
    "conflict",  # another owner, version or batch got there first
    "unavailable",  # a disk or another process failed
    "canceled",  # the caller gave up
    "corrupt",  # data contradicts its own hash or schema
    "internal",  # a bug, or numbers that are no longer finite
)


class TrainerError(Exception):
    """A failure with its kind; the operation is added by the server, which knows it."""

    def __init__(self, kind: str, message: str):
        assert kind in KINDS, kind
        super().__init__(message)
        self.kind = kind


def invalid(message: str) -> TrainerError:
    return TrainerError("invalid", message)


def as_trainer_error(e: BaseException) -> TrainerError:
    if isinstance(e, TrainerError):
        return e
    if isinstance(e, OSError):
        return TrainerError("unavailable", f"{type(e).__name__}: {e}")
    return TrainerError("internal", f"{type(e).__name__}: {e}")
