"""Which processes make up the job: said by the user, or found by JAX on a TPU VM, in GKE, Slurm, Open MPI, Kubernetes.

JAX looks for them inside `jax.distributed.initialize()`, which then joins them or ends the process. Here they are known
before anything waits, so that a program can name the hosts that do not come, and stay alone without a wait.
"""

import logging
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from bert_jax.errors import UserError

logger = logging.getLogger(__name__)

ADDRESS, COUNT, NUMBER = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
BIND_ADDRESS = "JAX_COORDINATOR_BIND_ADDRESS"
JOIN_SECONDS, HEARTBEAT_SECONDS = "BERT_JAX_JOIN_SECONDS", "BERT_JAX_HEARTBEAT_SECONDS"

OPTIONS = {
    "--coordinator-address": ADDRESS,
    "--num-processes": COUNT,
    "--process-id": NUMBER,
    "--coordinator-bind-address": BIND_ADDRESS,
    "--join-seconds": JOIN_SECONDS,
    "--heartbeat-seconds": HEARTBEAT_SECONDS,
}
"""An option of a training program -> the environment variable that says the same; the option comes first."""


@dataclass(frozen=True)
class Place:
    """Where a process stands in its job.

    Attributes:
        coordinator: HOST:PORT of the first process, as the others reach it.
        bind: IP:PORT on which the first process listens; None: on all its addresses.
        count: the number of processes, at least 2.
        number: of this process, from 0.
        devices: the local devices that are this process's own; None: all.
        join_seconds: how long to wait for the other processes.
        heartbeat_seconds: how long a process may be silent before it counts as lost.
    """

    coordinator: str
    bind: str | None
    count: int
    number: int
    devices: list[int] | None
    join_seconds: int
    heartbeat_seconds: int


def find_place(options: Mapping[str, str] | None = None) -> Place | None:
    """This process's place in a job of several; None if it is alone.

    What `options` and the variables of `OPTIONS` leave out, JAX's cluster detection supplies. It asks the metadata
    server only on a machine with TPU chips.

    Args:
        options: option of the command line -> its text.

    Raises:
        UserError: a setting is wrong or another one is missing; or a cluster is there and cannot be read.
    """
    given = _Given(options or {})
    address, count, number = given.text(ADDRESS), given.number(COUNT, at_least=1), given.number(NUMBER, at_least=0)
    join_seconds = given.number(JOIN_SECONDS, at_least=1) or 300
    heartbeat_seconds = given.number(HEARTBEAT_SECONDS, at_least=1) or 60
    if address is not None:
        _check_address(given, ADDRESS, address)
    if (bind := given.text(BIND_ADDRESS)) is not None:
        _check_address(given, BIND_ADDRESS, bind)
    _check_number(given, number, count)
    if count == 1:
        return None
    devices = None
    said = [name for name in (ADDRESS, COUNT, NUMBER) if given.text(name) is not None]
    if len(said) < 3:
        address, count, number, devices = _detected(address, count, number, join_seconds)
        lacking = [n for n, v in ((ADDRESS, address), (COUNT, count), (NUMBER, number)) if v is None]
        if said and lacking:
            raise UserError(
                f"{given.spelled(said[0])}: found without {' and '.join(map(given.spelled, lacking))}, and no cluster "
                "is there that would tell; a job of several processes needs all three on every host"
            )
        if lacking:
            return None
    assert address is not None and count is not None and number is not None
    _check_number(given, number, count)
    return None if count == 1 else Place(address, bind, count, number, devices, join_seconds, heartbeat_seconds)


_JOBS = (
    (COUNT, NUMBER),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),  # set by srun; a batch script alone is one process
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
)
"""The variables with the number of a job's processes, and that of this process, from 0."""


def number_and_count() -> tuple[int, int] | None:
    """This process's number, from 0, and how many its job has, as variables say; None if none tells of several.

    For processes that share out work and need not join each other.

    Raises:
        UserError: the number is missing, or not below the count.
    """
    for of_count, of_number in _JOBS:
        if os.environ.get(of_count, "1") not in ("", "1"):
            try:
                number, count = int(os.environ.get(of_number, "")), int(os.environ[of_count])
            except ValueError:
                number, count = -1, 0
            if not 0 <= number < count:
                found = f"{of_count}={os.environ[of_count]} and {of_number}={os.environ.get(of_number, '')}"
                raise UserError(f"{of_number}: found {found}; expected a number from 0 and below the count")
            return number, count
    return None


class _Given:
    """The settings of the command line, and of the environment where the command line says nothing."""

    def __init__(self, options: Mapping[str, str]):
        self._options = {OPTIONS[option]: (option, text) for option, text in options.items()}

    def spelled(self, name: str) -> str:
        return self._options[name][0] if name in self._options else name

    def text(self, name: str) -> str | None:
        return self._options[name][1] if name in self._options else os.environ.get(name) or None

    def number(self, name: str, *, at_least: int) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not text.isdecimal() or int(text) < at_least:
            raise UserError(f"{self.spelled(name)}: found {text!r}; expected a whole number of at least {at_least}")
        return int(text)


def _check_number(given: _Given, number: int | None, count: int | None) -> None:
    if number is not None and count is not None and number >= count:
        expected = "0" if count == 1 else f"a number from 0 to {count - 1}"
        raise UserError(f"{given.spelled(NUMBER)}: found {number} in a job of {count}; expected {expected}")


def _check_address(given: _Given, name: str, text: str) -> None:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(f"{given.spelled(name)}: found {text!r}; expected HOST:PORT, such as 10.0.0.1:8476")


def _detected(
    address: str | None, count: int | None, number: int | None, seconds: int
) -> tuple[str | None, int | None, int | None, list[int] | None]:
    """Completes address, count and number by JAX's cluster detection; the last value is the process's devices."""
    import jax
    from jax._src.clusters import ClusterEnv  # JAX has no public way to ask without joining

    unknown = address, count, number, None
    # JAX sets TPU_SKIP_MDS_QUERY where it finds no TPU chips.
    on_tpu = "TPU_SKIP_MDS_QUERY" not in os.environ
    if on_tpu and (platforms := jax.config.jax_platforms) and "tpu" not in platforms:  # type: ignore[attr-defined]
        return unknown  # the user wants this machine's CPU, not its chips
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the package kubernetes is missing, in every pod: said below
            found = ClusterEnv.auto_detect_unset_distributed_params(address, count, number, None, None, seconds)
    except Exception as error:
        if "KUBERNETES_SERVICE_HOST" in os.environ and "JOB_COMPLETION_INDEX" not in os.environ and not on_tpu:
            return unknown  # a pod that is no part of an indexed job, or that may not ask
        what = " ".join(str(error).split()) or type(error).__name__
        if "mpi4py" not in what:  # which newer JAX wants for Open MPI 5; its variables say all but the address
            raise UserError(
                f"this machine is part of a cluster that cannot be read ({what}); say {ADDRESS}, {COUNT} and {NUMBER}, "
                f"or {COUNT}=1 to train on this machine alone"
            ) from error
        found = unknown
    address, count, number, devices = found
    if None in (address, count, number):
        count, number = _of_open_mpi(count, number)
        _warn_of_others(address, count, number)
    return address, count, number, None if devices is None else list(devices)


def _of_open_mpi(count: int | None, number: int | None) -> tuple[int | None, int | None]:
    """Count and number from Open MPI 5, which JAX cannot read without mpi4py: it tells no address."""
    size, rank = os.environ.get("OMPI_COMM_WORLD_SIZE", ""), os.environ.get("OMPI_COMM_WORLD_RANK", "")
    if not (size.isdecimal() and rank.isdecimal()):
        return count, number
    return (int(size) if count is None else count), (int(rank) if number is None else number)


def _warn_of_others(address: str | None, count: int | None, number: int | None) -> None:
    """Raises UserError, or warns, where the environment tells of other processes that cannot be joined."""
    if address is None and count is not None and number is not None and count > 1:
        raise UserError(
            f"{ADDRESS}: not given, and this is process {number} of {count}; expected HOST:PORT of the first"
        )
    if os.environ.get("SLURM_NTASKS", "1") != "1" and "SLURM_STEP_NODELIST" not in os.environ:
        logger.warning(
            "SLURM_NTASKS=%s, but srun did not start this process, so it trains alone; start it with srun to use all "
            "tasks",
            os.environ["SLURM_NTASKS"],
        )
    elif "KUBERNETES_SERVICE_HOST" in os.environ and "JOB_COMPLETION_INDEX" in os.environ and count is None:
        logger.warning(
            "this is pod %s of an indexed job, and it trains alone; to join the other pods, pip install kubernetes, or "
            "say %s, %s and %s",
            os.environ["JOB_COMPLETION_INDEX"],
            ADDRESS,
            COUNT,
            NUMBER,
        )
