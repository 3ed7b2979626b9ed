"""What became of every parameter of a load."""

from dataclasses import dataclass

from bert_jax.errors import UserError


class IncompleteModel(UserError):
    """A model that lacks parameters which are wanted, and has nothing else wrong. missing: their paths."""

    def __init__(self, message: str, missing: tuple[str, ...]):
        super().__init__(message)
        self.missing = missing


@dataclass(frozen=True)
class Report:
    """What became of every parameter of a load: nothing is dropped or made up in silence.

    Attributes:
        source: where it was read from.
        head: which model the tree is for: a key of `bert_jax.model.heads.HEADS`.
        step: the training step, of a run's checkpoint or recorded in an export; None where nothing says.
        verified: whether stored sums were found and agree; None where there are none.
        loaded: our paths that came from the file.
        missing: our paths that the file has not.
        unexpected: their keys that this head does not use.
        mismatched: one line each: another shape, a dtype that is no float, a tied copy that differs.
        fresh: our paths that were initialised anew because the caller allowed them to be missing.
        notes: one line each: what the files leave open, and how it was taken.
    """

    source: str
    head: str
    step: int | None = None
    verified: bool | None = None
    loaded: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatched: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def problems(self, allow_missing: tuple[str, ...] = ()) -> list[str]:
        """What makes the load unusable: one line each; what starts with a name in `allow_missing` is left out."""
        missing = [path for path in self.missing if not is_allowed(path, allow_missing)]
        lines = [line for line in self.mismatched if not is_allowed(line.split(":", 1)[0], allow_missing)]
        if missing:
            shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
            parts = ", ".join(sorted({repr(_part(path)) for path in missing}))
            lines.append(f"missing: {shown} (to start them fresh, name them in allow_missing, as in ({parts},))")
        return lines

    def check(self, allow_missing: tuple[str, ...] = ()) -> None:
        """Raise a UserError with the first problem and how many there are; `IncompleteModel` if some are missing."""
        lines = self.problems(allow_missing)
        if not lines:
            return
        more = f" (and {len(lines) - 1} more such lines)" if len(lines) > 1 else ""
        message = f"{self.source}, head={self.head!r}: {lines[0]}{more}"
        if len(lines) == 1 and not self.mismatched:
            raise IncompleteModel(message, self.missing)
        raise UserError(message)


def is_allowed(path: str, allowed: tuple[str, ...]) -> bool:
    """Whether a path is one of `allowed` or lies below one ("mlm_head" allows "mlm_head/bias")."""
    return any(path == name or path.startswith(f"{name}/") for name in allowed)


def _part(path: str) -> str:
    """What one would name to allow it: a head as a whole, and of the encoder its pooler."""
    first, *rest = path.split("/")
    return f"{first}/{rest[0]}" if first == "bert" and rest else first
