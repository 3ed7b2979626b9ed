"""How a process finds the others of its job: said by the user, or found by JAX's own cluster detection."""

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import pytest

from bert_jax.errors import UserError
from bert_jax.runtime import hosts
from bert_jax.runtime.cluster import Place, find_place
from tests.hosts import Hosts, free_port
from train import pretrain
from train.run.ending.stopping import exit_code

VARIABLES = ("JAX_", "BERT_JAX_JOIN", "BERT_JAX_HEART", "SLURM_", "OMPI_", "TPU_", "MEGASCALE_", "KUBERNETES_", "JOB_")
SLURM = {
    "SLURM_JOB_ID": "4098",
    "SLURM_STEP_NODELIST": "node[07,09]",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
OPEN_MPI = {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}
ALL_THREE = {"JAX_COORDINATOR_ADDRESS": "10.0.0.1:99", "JAX_NUM_PROCESSES": "8", "JAX_PROCESS_ID": "7"}


@pytest.fixture
def environment(monkeypatch):
    """Sets variables in an environment without any that names other processes, on a machine without TPU chips."""
    for name in os.environ:
        if name.startswith(VARIABLES) and name != "JAX_COMPILATION_CACHE_DIR":
            monkeypatch.delenv(name)
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")  # as JAX sets it at its import

    def set_all(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_all


@contextmanager
def metadata_server(attributes: dict[str, str]) -> Iterator[str]:
    """A Google metadata server on the loopback, with these attributes of the instance; yields its address."""

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            value = attributes.get(self.path.rpartition("/")[2])
            self.send_response(404 if value is None else 200)
            self.end_headers()
            self.wfile.write((value or "").encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def metadata(monkeypatch, environment):
    """The attributes of a machine with TPU chips, to be filled in."""
    monkeypatch.setattr("jax._src.clusters.cloud_tpu_cluster.running_in_cloud_tpu_vm", True)
    monkeypatch.setattr("jax._src.clusters.cluster.running_in_cloud_tpu_vm", True)
    monkeypatch.delenv("TPU_SKIP_MDS_QUERY")
    platforms = jax.config.jax_platforms  # type: ignore[attr-defined]
    jax.config.update("jax_platforms", "tpu,cpu")  # JAX sets it on such a machine
    attributes: dict[str, str] = {}
    with metadata_server(attributes) as address:
        monkeypatch.setenv("GCE_METADATA_IP", address)
        yield attributes
    jax.config.update("jax_platforms", platforms)


def test_a_process_that_nothing_tells_of_others_is_alone(environment, monkeypatch):
    def asked(*_, **__):
        raise AssertionError("the metadata server was asked")

    monkeypatch.setattr("requests.get", asked)
    assert find_place() is None


def test_one_process_of_a_pod_can_be_alone(metadata, environment):
    metadata |= {"agent-worker-number": "0", "worker-network-endpoints": "127.0.0.1,127.0.0.2", "tpu-env": ""}
    assert find_place() is not None
    assert find_place({"--num-processes": "1"}) is None
    jax.config.update("jax_platforms", "cpu")
    assert find_place() is None


def test_slurm_says_who_is_there(environment):
    environment(SLURM)
    # node07; JAX takes the port from the job's id: 65535 - 4096 + 1 + 4098 % 4096
    assert find_place() == Place("node07:61442", None, 2, 1, [0], 300, 60)
    environment({"SLURM_NTASKS": "1", "SLURM_PROCID": "0"})
    assert find_place() is None


def test_open_mpi_says_who_is_there(environment, monkeypatch):
    environment(OPEN_MPI)
    place = find_place()
    assert place is not None
    assert (place.coordinator.partition(":")[0], place.count, place.number, place.devices) == ("10.96.0.1", 4, 3, [1])
    monkeypatch.delenv("OMPI_MCA_orte_hnp_uri")  # Open MPI 5 names no address
    with pytest.raises(UserError, match=r"^JAX_COORDINATOR_ADDRESS: not given, and this is process 3 of 4; expected"):
        find_place()
    place = find_place({"--coordinator-address": "10.0.0.9:1234"})
    assert place == Place("10.0.0.9:1234", None, 4, 3, None, 300, 60)


@pytest.mark.parametrize(
    ("endpoints", "coordinator"),
    [
        ("127.0.0.5,127.0.0.6,127.0.0.7,127.0.0.8", "127.0.0.5:8482"),
        ("unknown:unknown:127.0.0.5,unknown:unknown:127.0.0.6,a:b:127.0.0.7,a:b:127.0.0.8", "127.0.0.5:8482"),
    ],
)
def test_a_tpu_vm_is_asked_for_the_hosts_of_its_slice(metadata, endpoints, coordinator):
    metadata |= {"agent-worker-number": "2", "worker-network-endpoints": endpoints, "tpu-env": "TYPE: 'v5e'"}
    assert find_place() == Place(coordinator, None, 4, 2, None, 300, 60)


def test_a_tpu_vm_of_several_slices_counts_all_their_hosts(metadata):
    slices = "MEGASCALE_NUM_SLICES: '2'\nMEGASCALE_SLICE_ID: '1'\nMEGASCALE_COORDINATOR_ADDRESS: '127.0.0.1:8080'"
    metadata |= {"agent-worker-number": "1", "worker-network-endpoints": "127.0.0.3,127.0.0.4", "tpu-env": slices}
    assert find_place() == Place("127.0.0.1:8482", None, 4, 3, None, 300, 60)


def test_a_tpu_vm_that_is_a_whole_slice_is_alone(metadata):
    metadata |= {"agent-worker-number": "0", "worker-network-endpoints": "127.0.0.5", "tpu-env": ""}
    assert find_place() is None


def test_a_pod_of_gke_knows_its_hosts(metadata, environment):
    environment({"TPU_WORKER_HOSTNAMES": "127.0.0.3,127.0.0.4", "TPU_WORKER_ID": "1", "TPU_SKIP_MDS_QUERY": "1"})
    metadata["tpu-env"] = ""
    assert find_place() == Place("127.0.0.3:8482", None, 2, 1, None, 300, 60)


def test_a_tpu_vm_whose_metadata_server_is_gone_says_what_to_do(metadata, environment):
    environment({"GCE_METADATA_IP": "127.0.0.1:1"})
    with pytest.raises(
        UserError, match=r"^this machine is part of a cluster that cannot be read \(.*JAX_NUM_PROCESSES=1"
    ):
        find_place()


def test_a_pod_of_kubernetes_that_cannot_ask_is_alone(environment, caplog):
    environment({"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert find_place() is None
    assert not caplog.messages
    environment({"JOB_COMPLETION_INDEX": "3"})
    assert find_place() is None
    (message,) = caplog.messages
    assert message.startswith(
        "this is pod 3 of an indexed job, and it trains alone; to join the other pods, pip install"
    )


def test_a_slurm_script_that_forgets_srun_is_warned(environment, caplog):
    environment({"SLURM_JOB_ID": "4098", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"})
    assert find_place() is None
    assert len(caplog.messages) == 1 and "srun did not start this process" in caplog.messages[0]


def test_options_come_before_variables_and_these_before_what_is_found(environment):
    environment(SLURM | {"JAX_COORDINATOR_ADDRESS": "10.0.0.1:99"})
    assert find_place() == Place("10.0.0.1:99", None, 2, 1, [0], 300, 60)
    environment(ALL_THREE | {"JAX_COORDINATOR_BIND_ADDRESS": "0.0.0.0:98", "BERT_JAX_JOIN_SECONDS": "20"})
    assert find_place() == Place("10.0.0.1:99", "0.0.0.0:98", 8, 7, None, 20, 60)
    options = {"--coordinator-address": "[::1]:5", "--process-id": "0", "--heartbeat-seconds": "30"}
    assert find_place(options) == Place("[::1]:5", "0.0.0.0:98", 8, 0, None, 20, 30)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"JAX_NUM_PROCESSES": "2"},
            "JAX_NUM_PROCESSES: found without JAX_COORDINATOR_ADDRESS and JAX_PROCESS_ID, and no cluster is there that",
        ),
        (
            {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "2"},
            "JAX_COORDINATOR_ADDRESS: found without JAX_PROCESS_ID,",
        ),
        ({"JAX_PROCESS_ID": "1"}, "JAX_PROCESS_ID: found without JAX_COORDINATOR_ADDRESS and JAX_NUM_PROCESSES,"),
        (ALL_THREE | {"JAX_PROCESS_ID": "8"}, "JAX_PROCESS_ID: found 8 in a job of 8; expected a number from 0 to 7"),
        (ALL_THREE | {"JAX_PROCESS_ID": "-1"}, "JAX_PROCESS_ID: found '-1'; expected a whole number of at least 0"),
        (ALL_THREE | {"JAX_PROCESS_ID": "one"}, "JAX_PROCESS_ID: found 'one'; expected a whole number of at least 0"),
        (ALL_THREE | {"JAX_NUM_PROCESSES": "0"}, "JAX_NUM_PROCESSES: found '0'; expected a whole number of at least 1"),
        (
            ALL_THREE | {"JAX_COORDINATOR_ADDRESS": "10.0.0.1"},
            "JAX_COORDINATOR_ADDRESS: found '10.0.0.1'; expected HOST:PORT",
        ),
        (
            ALL_THREE | {"JAX_COORDINATOR_BIND_ADDRESS": ":x"},
            "JAX_COORDINATOR_BIND_ADDRESS: found ':x'; expected HOST:PORT",
        ),
        (
            {"BERT_JAX_JOIN_SECONDS": "soon"},
            "BERT_JAX_JOIN_SECONDS: found 'soon'; expected a whole number of at least 1",
        ),
    ],
)
def test_settings_that_are_wrong_or_incomplete_are_one_line(environment, capsys, variables, message):
    environment(variables)
    assert exit_code(pretrain.main, ["configs/tiny.py", "data=random"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"python -m train.pretrain: error: {message}") and err.count("\n") == 1


def test_options_are_named_as_they_were_typed(environment, capsys):
    assert exit_code(pretrain.main, ["configs/tiny.py", "data=random", "--num-processes=2", "--process-id=5"]) == 2
    assert "error: --process-id: found 5 in a job of 2; expected a number from 0 to 1\n" in capsys.readouterr().err
    assert exit_code(pretrain.main, ["configs/tiny.py", "data=random", "--num-proceses=2"]) == 2
    assert "'--num-proceses=2' is not an option; did you mean --num-processes" in capsys.readouterr().err
    assert exit_code(pretrain.main, ["configs/tiny.py", "--process-id", "5"]) == 2
    assert "error: --process-id: expected --process-id=VALUE\n" in capsys.readouterr().err


def test_jax_is_joined_with_what_was_found(environment, monkeypatch):
    environment(ALL_THREE | {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"})
    found = []
    monkeypatch.setattr(hosts.ControlChannel, "open", lambda self: None)
    monkeypatch.setattr(hosts, "_survive_abort", lambda: None)
    monkeypatch.setattr(hosts, "_channel", None)
    monkeypatch.setattr(jax.distributed, "initialize", lambda *args, **options: found.append((args, options)))
    hosts.join({"--coordinator-bind-address": "10.0.0.1:98", "--join-seconds": "20"})
    ((args, options),) = found
    assert args == ("10.0.0.1:99", 2, 0)
    assert (options["coordinator_bind_address"], options["initialization_timeout"]) == ("10.0.0.1:98", 20)
    assert hosts.in_a_job() and hosts.is_first()


@pytest.mark.slow
def test_a_program_alone_asks_nobody_and_opens_no_connection():
    """In a fresh process, with Python's own record of what it does on the network."""
    script = """
import sys
used = []
sys.addaudithook(lambda event, args: used.append(event) if event.startswith("socket.") else None)
import jax
used.clear()
from bert_jax.runtime import hosts
hosts.join()
assert not hosts.in_a_job() and not used, used
"""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(VARIABLES)}
    subprocess.run([sys.executable, "-c", script], env=clean | {"JAX_PLATFORMS": "cpu"}, check=True)


@pytest.mark.exhaustive
def test_the_hosts_of_a_tpu_slice_join_with_nothing_said(tmp_path):
    """Two real processes, each on a machine that seems to have TPU chips, each with a metadata server of its own."""
    script = """
import os
import jax
from jax._src.clusters import cloud_tpu_cluster, cluster
cluster.running_in_cloud_tpu_vm = cloud_tpu_cluster.running_in_cloud_tpu_vm = True
os.environ.pop("TPU_SKIP_MDS_QUERY")
from bert_jax.runtime import hosts
hosts.join()
jax.config.update("jax_platforms", "cpu")
jax.devices()
print(hosts.on_first_process(jax.process_index), jax.process_index(), jax.process_count(), jax.device_count())
hosts.leave()
"""
    facts = {"worker-network-endpoints": "127.0.0.1,127.0.0.2", "tpu-env": ""}
    no_words = dict.fromkeys(("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_PLATFORMS"), "")
    said = no_words | {"JAX_COORDINATOR_PORT": str(free_port())}
    first, second = ({**facts, "agent-worker-number": str(number)} for number in range(2))
    with metadata_server(first) as one, metadata_server(second) as other:

        def environment(number: int) -> dict[str, str]:
            return said | {"GCE_METADATA_IP": (one, other)[number]}

        with Hosts(2, ["-c", script], tmp_path, devices=2, environment=environment) as started:
            ends = started.wait()
    assert [end.code for end in ends] == [0, 0], ends
    assert [end.out.strip().splitlines()[-1] for end in ends] == ["0 0 2 4", "0 1 2 4"]


LATE = """
import sys, time
import jax, numpy as np
from bert_jax.runtime import hosts
from bert_jax.training.mesh import MeshConfig, make_mesh
hosts.join()
mesh = make_mesh(MeshConfig(data=2, fsdp=2))
hosts.connect(mesh)
whole, rows = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in ((), (("data", "fsdp"),)))
ones = jax.make_array_from_callback((4,), rows, lambda place: np.ones(1))
if sys.argv[1] == "1":
    time.sleep(40)  # compiles, while the other had the program in its cache
print(float(jax.jit(lambda x: x.sum(), out_shardings=whole)(ones)), flush=True)
hosts.leave()
"""


@pytest.mark.exhaustive
def test_a_process_that_compiles_for_longer_than_the_others_is_waited_for(tmp_path):
    """Without `connect` JAX gives up after 30 seconds, on CPUs."""
    with Hosts(2, lambda number: ["-c", LATE, str(number)], tmp_path) as pod:
        ends = pod.wait()
    assert [(end.code, "4.0" in end.out.split()) for end in ends] == [(0, True)] * 2, ends
