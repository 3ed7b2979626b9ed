"""The `tokenizers` library's errors as one line for the user: its panics too, and without what they print."""

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from bert_jax.errors import UserError

# File descriptor 2 is the process's: one thread at a time may hold it.
_HOLDING = threading.RLock()


@contextmanager
def rust_errors(what: str) -> Iterator[None]:
    """Errors of the library, panics too (they are no `Exception`), as one `UserError` line that begins with `what`.

    A panic's own text, which Rust writes to the standard error before Python hears of it, is dropped; whatever else
    is written there meanwhile comes out afterwards.
    """
    with _standard_error_held() as held:
        try:
            yield
        except UserError:
            raise
        except BaseException as error:
            panic = type(error).__name__ == "PanicException"
            if not isinstance(error, Exception) and not panic:
                raise
            if panic and held is not None:
                held.truncate(0)
            raise UserError(f"{what}: {str(error).splitlines()[0] if str(error) else type(error).__name__}") from None


@contextmanager
def _standard_error_held() -> Iterator[IO[bytes] | None]:
    """What is written to file descriptor 2 goes to a file that is copied there at the end; None where there is no 2."""
    with _HOLDING, tempfile.TemporaryFile() as held:
        try:
            outside = os.dup(2)
        except OSError:
            yield None
            return
        os.dup2(held.fileno(), 2)
        try:
            yield held
        finally:
            os.dup2(outside, 2)
            os.close(outside)
            held.seek(0)
            if text := held.read():
                os.write(2, text)
