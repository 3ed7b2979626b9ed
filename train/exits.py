"""Exit codes, and the one way in which every program turns an outcome into one. Imports no JAX."""

import logging
import os
import sys
from collections.abc import Callable

from bert_jax.errors import UserError

EXIT_DONE, EXIT_USER_ERROR, EXIT_NOT_FINITE, EXIT_PREEMPTED, EXIT_INTERRUPTED = 0, 2, 3, 75, 130


def run_program(main: Callable[[list[str]], int]) -> None:
    """Ends the process with the exit code of `main` on the command line's arguments."""
    # force: some import of ours may have set up logging already.
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", force=True)
    logging.getLogger("absl").setLevel(logging.WARNING)  # Orbax narrates through it
    sys.exit(exit_code(main, sys.argv[1:]))


def exit_code(main: Callable[[list[str]], int], argv: list[str]) -> int:
    """What `main(argv)` returns; or the code for what it raises, told in one line on stderr.

    A user's mistake, a full disk or a missing permission is 2, Ctrl-C is 130; a bug is not caught here.
    """
    try:
        code = main(argv)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where this stopped", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
