"""The files in launch/ and the Dockerfile: run with stand-ins for gcloud, srun and the program, and read by their own tools.

No TPU, no cluster and no container engine takes part. With BERT_JAX_LAUNCH_TOOLS, an environment with shellcheck,
hadolint, SkyPilot and the schema of JobSet (CONTRIBUTING.md says how to make it), these judge the files too.
"""

import ast
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from bert_jax.files import is_remote
from bert_jax.runtime.cluster import find_place
from tests.root import ROOT
from train.pretraining.recipe import PretrainConfig
from train.run.ending import stopping
from train.run.ending.watchdog import Budgets
from train.run.launch import parse

LAUNCH = ROOT / "launch"
SCRIPTS = sorted(LAUNCH.glob("*.sh"))
# A restart would end in the same way; all other codes are worth one.
FINAL = {
    stopping.EXIT_DONE,
    stopping.EXIT_USER_ERROR,
    stopping.EXIT_NOT_FINITE,
    stopping.EXIT_HOPELESS,
    stopping.EXIT_INTERRUPTED,
}


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def run(command: list[Any], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a script with the programs in `folder`/bin in place of the real ones."""
    environment = os.environ | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"} | variables
    return subprocess.run(
        [str(word) for word in command], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def join_seconds() -> int:
    """How long the hosts wait for each other by default."""
    place = find_place({"--coordinator-address": "a:1", "--num-processes": "2", "--process-id": "0"})
    assert place is not None
    return place.join_seconds


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_bash_that_parses_and_can_be_called(script: Path):
    assert script.read_text().startswith("#!/usr/bin/env bash\n")
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)


def test_the_guides_commands_name_configs_and_fields_that_exist():
    guide = (ROOT / "docs" / "pods.md").read_text()
    commands = re.findall(r"(?:start|queued_resource\.sh|slurm\.sh|train\.pretrain) (configs/[^\n#\"]+)", guide)
    assert len(commands) == 4
    for words in commands:
        assert parse(words.split(), "", PretrainConfig).config.data
    for path in re.findall(r"`(launch/[\w.]+)`", guide):
        assert (ROOT / path).is_file(), path
    runs = re.findall(r"train\.doctor ([^\s`]+)", guide)
    assert runs and not any(is_remote(run) for run in runs)  # it reads no bucket


def test_all_that_starts_a_pod_names_one_folder_of_compiled_programs_for_all_hosts():
    """JAX lets the first host alone write them."""
    guide = (ROOT / "docs" / "pods.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", guide, re.DOTALL)
    starts = [block for block in blocks if re.search(r"tpu_vm\.sh start|queued_resource\.sh", block)]
    assert len(starts) == 2
    for block in starts:
        assert re.search(r"^export JAX_COMPILATION_CACHE_DIR=gs://[^\n]+\n(?:.* start|.*queued)", block, re.MULTILINE)
    for name in ("tpu_vm.sh", "queued_resource.sh", "jobset.yaml", "skypilot.yaml"):
        assert re.search("JAX_COMPILATION_CACHE_DIR.*gs://", (LAUNCH / name).read_text()), name


def codes_in_the_guide() -> tuple[set[int], set[int]]:
    """The exit codes after which the guide says that a run is to be started again, and those after which not."""
    guide = (ROOT / "docs" / "pods.md").read_text()
    (found,) = re.findall(r"exit codes ([\d, and\n]+?)\s+start it again; after ([\d, and\n]+?) do not", guide)
    again, never = ({int(code) for code in re.findall(r"\d+", codes)} for codes in found)
    return again, never


def test_the_guide_says_which_codes_end_a_run_and_agrees_with_the_page_of_exit_codes():
    again, never = codes_in_the_guide()
    assert never == FINAL
    page = (ROOT / "docs" / "reliability.md").read_text()
    (signals,) = re.findall(r"has a code above 128 in the shell: (.+?)\. These are worth restarting", page, re.DOTALL)
    in_table = re.findall(r"^\| (\d+) \| .* \| yes \|$", page, re.MULTILINE)
    assert again == {int(code) for code in [*in_table, *re.findall(r"\b\d{3}\b", signals)]}
    assert stopping.EXIT_PREEMPTED in again


# --- starting again ---

COUNTING = """#!/bin/bash
# Ends with the next code of the file `codes`; notes each start.
echo "$@" >> starts
code=$(head -n 1 codes) && sed -i 1d codes
exit "${code:-0}"
"""


@pytest.mark.parametrize(
    ("codes", "starts", "last"),
    [
        ([75, 134, 137, 1, 0], 5, 0),
        *(([75, code, 0], 2, code) for code in sorted(FINAL - {0})),
        ([75] * 9, 5, 75),  # it gives up: nothing lasts
    ],
)
def test_the_loop_starts_again_for_every_code_that_is_worth_it(tmp_path: Path, codes, starts: int, last: int):
    program = executable(tmp_path / "program", COUNTING)
    (tmp_path / "codes").write_text("".join(f"{code}\n" for code in codes))
    ended = subprocess.run(
        [LAUNCH / "restart.sh", program, "a word", "run=x"],
        cwd=tmp_path,
        env=os.environ | {"RESTART_PAUSE": "0", "RESTART_CODE": str(tmp_path / "code")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == last
    assert lines(tmp_path / "starts") == ["a word run=x"] * starts
    assert (tmp_path / "code").read_text() == f"{last}\n"


def test_the_loop_without_a_command_is_a_mistake_and_not_a_run_that_is_done():
    ended = subprocess.run([LAUNCH / "restart.sh"], capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 2 and ended.stderr.startswith("say what to run: ")


def test_a_run_that_lasts_is_started_again_without_end(tmp_path: Path):
    program = executable(tmp_path / "program", COUNTING)
    (tmp_path / "codes").write_text("75\n" * 9 + "0\n")
    variables = {"RESTART_PAUSE": "0", "RESTART_QUICK": "0"}  # every run counts as one that lasted
    ended = subprocess.run(
        [LAUNCH / "restart.sh", program], cwd=tmp_path, env=os.environ | variables, capture_output=True, check=False
    )
    assert (ended.returncode, len(lines(tmp_path / "starts"))) == (0, 10)


def test_sigterm_reaches_the_program_and_nothing_starts_again(tmp_path: Path):
    program = executable(
        tmp_path / "program",
        "#!/bin/bash\ntrap 'sleep 0.3; echo saved > saved; exit 75' TERM\necho start >> starts\nwhile :; do sleep 0.05; done\n",
    )
    loop = subprocess.Popen([LAUNCH / "restart.sh", program], cwd=tmp_path, stderr=subprocess.DEVNULL)
    while not lines(tmp_path / "starts"):
        time.sleep(0.02)
    loop.send_signal(signal.SIGTERM)
    assert loop.wait(30) == 75
    assert lines(tmp_path / "saved") == ["saved"] and lines(tmp_path / "starts") == ["start"]


def test_ctrl_c_in_a_terminal_reaches_the_program_once(tmp_path: Path):
    program = executable(
        tmp_path / "program",
        f"""#!{sys.executable}
import signal, sys, time
from pathlib import Path
told, inherited = [], signal.getsignal(signal.SIGINT)
signal.signal(signal.SIGINT, lambda number, frame: told.append(number))
Path("starts").write_text("start\\n")
while not told:
    time.sleep(0.02)
time.sleep(0.3)
Path("told").write_text(f"{{len(told)}} {{inherited.__name__}}\\n")
sys.exit(130)
""",
    )
    # Where a script runs the tests in the background, SIGINT is ignored, and bash cannot change that.
    command = ["env", "--default-signal=INT", LAUNCH / "restart.sh", program]
    loop = subprocess.Popen(command, cwd=tmp_path, start_new_session=True)
    wait_for_lines(tmp_path / "starts")
    os.killpg(loop.pid, signal.SIGINT)  # as a terminal does
    assert loop.wait(30) == 130
    assert lines(tmp_path / "told") == ["1 default_int_handler"]  # which ends it while Python loads


def test_a_run_that_only_waited_for_another_host_does_not_count_as_one_that_lasted():
    (quick,) = re.findall(r"RESTART_QUICK:-(\d+)", (LAUNCH / "restart.sh").read_text())
    assert int(quick) > join_seconds() + 60  # to start, and to tell who is missing


def test_sigterm_before_the_program_has_a_number_reaches_the_program_alone(tmp_path: Path):
    program = executable(
        tmp_path / "program",
        "#!/bin/bash\ntrap 'echo saved > saved; exit 75' TERM\necho start >> starts\nwhile :; do sleep 0.05; done\n",
    )
    # bash reads this file first: the signal comes when the program has begun, between its start and `command=$!`
    (tmp_path / "early").write_text(
        """trap 'if [ "$BASH_COMMAND" = "command=\\$!" ]; then trap - DEBUG
          while [ ! -e starts ]; do sleep 0.05; done; kill -s TERM $$; fi' DEBUG\n"""
    )
    ended = subprocess.run(
        [LAUNCH / "restart.sh", program],
        cwd=tmp_path,
        env=os.environ | {"BASH_ENV": str(tmp_path / "early"), "RESTART_PAUSE": "0"},
        start_new_session=True,  # a signal to the whole group would reach the tests
        check=False,
        timeout=60,
    )
    assert ended.returncode == 75
    assert lines(tmp_path / "saved") == ["saved"] and lines(tmp_path / "starts") == ["start"]


@pytest.mark.parametrize("name", ["restart.sh", "slurm.sh", "tpu_vm.sh"])
def test_the_codes_that_end_it_are_those_of_the_programs(name: str):
    (codes,) = re.findall(r"case \\?\$code in ([\d |]+)\)", (LAUNCH / name).read_text())
    assert {int(code) for code in codes.split("|")} == FINAL


# --- TPU VMs ---

# Notes each call; `ssh` runs its command in the home of one host, or of all; `describe` prints the next line of
# `states`. NONE: there is no such pod. NET: there is one, but the network fails, so it cannot be created either.
GCLOUD = """#!/bin/bash
cd "$FAKE"
printf '%s\\n' "$*" >> calls
for word in "$@"; do case $word in --worker=all) hosts="0 1" ;; --worker=*) hosts=${word#*=} ;; esac
  case $word in --command=*) command=${word#*=} ;; esac; done
case " $* " in
*" ssh "*) for host in $hosts; do (export HOME=$FAKE/host-$host; cd "$HOME" && bash -c "$command") || exit; done ;;
*" describe "*)
  state=$(head -n 1 states) && sed -i 1d states
  case $state in NONE) exit 1 ;; NET) touch there && exit 1 ;; *) echo "$state" ;; esac ;;
*" create "*) [ ! -e there ] || { rm there; exit 1; } ;;
esac
"""
# What the pages of gcloud list: cloud.google.com/sdk/gcloud/reference/compute/tpus/tpu-vm and .../queued-resources.
FLAGS = {
    "tpu-vm create": {"--zone", "--accelerator-type", "--version", "--spot"},
    "tpu-vm ssh": {"--zone", "--worker", "--command"},
    "tpu-vm scp": {"--zone", "--worker"},
    "tpu-vm delete": {"--zone", "--quiet"},
    "queued-resources create": {"--zone", "--node-id", "--accelerator-type", "--runtime-version", "--spot"},
    "queued-resources describe": {"--zone", "--format"},
    "queued-resources delete": {"--zone", "--force", "--quiet"},
}


@pytest.fixture
def pod(tmp_path: Path) -> Path:
    """Two hosts behind a stand-in for gcloud, on which `setup` has been done."""
    executable(tmp_path / "bin" / "gcloud", GCLOUD)
    for host in ("host-0", "host-1"):
        home = tmp_path / host / "bert_jax"
        executable(home / ".venv" / "bin" / "python", f"#!/bin/bash\n{COUNTING.split(chr(10), 2)[2]}")
        (home / "launch").mkdir()
        (home / "launch" / "restart.sh").symlink_to(LAUNCH / "restart.sh")
        (home / "codes").write_text("75\n0\n")
    return tmp_path


def on_pod(pod: Path, script: str | Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    named = {"NAME": "bert", "ZONE": "us-west4-a", "FAKE": str(pod), "RESTART_PAUSE": "0", "POLL": "0"}
    return run([LAUNCH / script, *words], pod, **(named | variables))


def check_calls(pod: Path) -> list[str]:
    """The calls of gcloud, each without its flags, which must be those that it has."""
    calls = []
    for line in (pod / "calls").read_text().split("compute tpus ")[1:]:
        kind = " ".join(line.split()[:2])
        assert set(re.findall(r"(?<= )--[a-z-]+(?==| |$)", line.split("--command=")[0])) <= FLAGS[kind], line
        calls.append(kind)
    return calls


def wait_for_lines(path: Path) -> list[str]:
    deadline = time.monotonic() + 30
    while not lines(path) and time.monotonic() < deadline:
        time.sleep(0.02)
    return lines(path)


def test_a_tpu_vm_is_created_set_up_started_read_and_deleted_by_ssh(pod: Path):
    assert on_pod(pod, "tpu_vm.sh", "create", SPOT="yes").returncode == 0
    assert lines(pod / "calls")[-1] == (
        "compute tpus tpu-vm create bert --zone=us-west4-a --accelerator-type=v5litepod-16 "
        "--version=v2-alpha-tpuv5-lite --spot"
    )
    assert on_pod(pod, "tpu_vm.sh", "code").stdout == ""
    started = on_pod(pod, "tpu_vm.sh", "start", "configs/tiny.py", "phases=((128, 64, 9),)", "run=gs://b/run")
    assert started.returncode == 0, started.stderr
    for host in ("host-0", "host-1"):  # 75, then 0: two starts, with the words as they were given
        assert wait_for_lines(pod / host / "run.code") == ["0"]
        words = "-m train.pretrain configs/tiny.py phases=((128, 64, 9),) run=gs://b/run"
        assert lines(pod / host / "bert_jax" / "starts") == [words] * 2
        assert "exit code 75; starting again" in (pod / host / "run.log").read_text()
    assert on_pod(pod, "tpu_vm.sh", "code").stdout == "0\n"
    assert on_pod(pod, "tpu_vm.sh", "delete").returncode == 0
    assert check_calls(pod) == ["tpu-vm create", *["tpu-vm ssh"] * 3, "tpu-vm delete"]
    assert on_pod(pod, "tpu_vm.sh", "start").returncode == on_pod(pod, "tpu_vm.sh").returncode == 2
    assert "say ZONE=" in on_pod(pod, "tpu_vm.sh", "create", ZONE="").stderr


@pytest.mark.parametrize("script", ["tpu_vm.sh", "queued_resource.sh"])
def test_only_yes_asks_for_chips_that_may_be_taken_away(pod: Path, script: str):
    executable(pod / "bin" / "sleep", "#!/bin/bash\nexit 7\n")  # ends the queue after its first round
    without_installing(pod)
    (pod / "states").write_text("NONE\n")
    on_pod(pod, script, "create", SPOT="no")
    (create,) = [line for line in lines(pod / "calls") if " create " in line]
    assert "--spot" not in create
    wrong = on_pod(pod, script, "create", SPOT="true")
    assert (wrong.returncode, wrong.stderr) == (2, "SPOT: found 'true'; expected yes or no\n")


def test_without_gcloud_the_queue_does_not_ask_for_ever(tmp_path: Path):
    (tmp_path / "bash").symlink_to("/bin/bash")
    variables = {"NAME": "b", "ZONE": "z", "POLL": "1", "PATH": str(tmp_path)}
    ended = subprocess.run(
        [LAUNCH / "queued_resource.sh", "configs/tiny.py"],
        env=variables, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 2 and ended.stderr.startswith("gcloud: not found; ")


def test_the_hosts_keep_compiled_programs_where_the_user_says(pod: Path):
    for host in ("host-0", "host-1"):
        python = pod / host / "bert_jax" / ".venv" / "bin" / "python"
        python.write_text('#!/bin/bash\necho "$JAX_COMPILATION_CACHE_DIR" > cache\n')
    bucket = "gs://b/com piled"
    assert on_pod(pod, "tpu_vm.sh", "start", "configs/tiny.py", JAX_COMPILATION_CACHE_DIR=bucket).returncode == 0
    for host in ("host-0", "host-1"):
        assert wait_for_lines(pod / host / "bert_jax" / "cache") == [bucket]


def test_a_run_on_a_tpu_vm_is_stopped_and_not_started_twice(pod: Path):
    for host in ("host-0", "host-1"):
        trap = "#!/bin/bash\ntrap 'exit 75' TERM\necho start >> starts\nwhile :; do sleep 0.05; done\n"
        executable(pod / host / "bert_jax" / ".venv" / "bin" / "python", trap)
    assert on_pod(pod, "tpu_vm.sh", "running").stdout == "no\nno\n"
    assert on_pod(pod, "tpu_vm.sh", "start", "configs/tiny.py").returncode == 0
    assert on_pod(pod, "tpu_vm.sh", "running").stdout == "yes\nyes\n"
    for words in (["start", "configs/tiny.py"], ["setup"]):
        twice = on_pod(pod, "tpu_vm.sh", *words)
        assert (twice.returncode, twice.stderr) == (1, "a run is going on here; stop it first\n")
    assert "tpu-vm scp" not in check_calls(pod)
    for host in ("host-0", "host-1"):
        assert wait_for_lines(pod / host / "bert_jax" / "starts") == ["start"]
    assert on_pod(pod, "tpu_vm.sh", "stop").returncode == 0
    for host in ("host-0", "host-1"):
        assert wait_for_lines(pod / host / "run.code") == ["75"]
        assert lines(pod / host / "bert_jax" / "starts") == ["start"]
    assert on_pod(pod, "tpu_vm.sh", "stop").returncode == 0  # nothing is left to stop


def test_a_host_that_was_started_anew_joins_the_run_again_and_no_other_is_touched(pod: Path):
    for host in ("host-0", "host-1"):
        trap = "#!/bin/bash\ntrap 'exit 75' TERM\necho start >> starts\nwhile :; do sleep 0.05; done\n"
        executable(pod / host / "bert_jax" / ".venv" / "bin" / "python", trap)
    assert on_pod(pod, "tpu_vm.sh", "start", "configs/tiny.py").returncode == 0
    for host in ("host-0", "host-1"):
        assert wait_for_lines(pod / host / "bert_jax" / "starts") == ["start"]
    process, boot = (pod / "host-1" / "run.pid").read_text().split()
    # The number is that of another process by now, which goes on.
    (pod / "host-1" / "run.pid").write_text(f"{process} {'0' * len(boot)}\n")
    for starts in (["start"] * 2, ["start"] * 2):  # the second time there is nothing to do
        assert on_pod(pod, "tpu_vm.sh", "revive", "configs/tiny.py").returncode == 0
        deadline = time.monotonic() + 30
        while lines(pod / "host-1" / "bert_jax" / "starts") != starts and time.monotonic() < deadline:
            time.sleep(0.02)
        assert lines(pod / "host-1" / "bert_jax" / "starts") == starts
        assert lines(pod / "host-0" / "bert_jax" / "starts") == ["start"]
    assert on_pod(pod, "tpu_vm.sh", "stop").returncode == 0
    for host in ("host-0", "host-1"):
        assert wait_for_lines(pod / host / "run.code") == ["75"]
    os.kill(int(process), signal.SIGTERM)
    assert on_pod(pod, "tpu_vm.sh", "revive", "configs/tiny.py").returncode == 0  # it has ended
    assert lines(pod / "host-0" / "bert_jax" / "starts") == ["start"]
    assert on_pod(pod, "tpu_vm.sh", "code").stdout == "75\n"


def test_a_run_that_a_shutdown_of_its_host_stopped_has_not_ended(pod: Path):
    for host, code in (("host-0", 75), ("host-1", 3)):  # the loops got SIGTERM, or had ended before
        (pod / host / "run.pid").write_text("7 an-earlier-boot\n")
        (pod / host / "run.code").write_text(f"{code}\n")
    code = on_pod(pod, "tpu_vm.sh", "code")
    assert (code.returncode, code.stdout) == (0, "")
    assert on_pod(pod, "tpu_vm.sh", "revive", "configs/tiny.py").returncode == 0
    assert len(wait_for_lines(pod / "host-0" / "bert_jax" / "starts")) > 0
    assert wait_for_lines(pod / "host-0" / "run.code") == ["0"]
    assert lines(pod / "host-1" / "bert_jax" / "starts") == [] and lines(pod / "host-1" / "run.code") == ["3"]


def checkout(pod: Path) -> Path:
    """A repository with one commit: the scripts and a module."""
    repository = pod / "checkout"
    shutil.copytree(LAUNCH, repository / "launch")
    (repository / "train").mkdir()
    (repository / "train" / "new.py").touch()
    commit = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "m"]
    for words in (["init", "-q"], ["add", "."], commit):
        subprocess.run(["git", *words], cwd=repository, check=True)
    return repository


def test_set_up_copies_the_last_commit_and_installs_what_is_pinned(pod: Path):
    executable(pod / "bin" / "gcloud", '#!/bin/bash\nprintf "%s\\n" "$*" >> "$FAKE/calls"\n')
    assert on_pod(pod, checkout(pod) / "launch" / "tpu_vm.sh", "setup").returncode == 0
    assert check_calls(pod) == ["tpu-vm ssh", "tpu-vm scp", "tpu-vm ssh"]
    calls = (pod / "calls").read_text()
    assert "bert_jax.tar.gz bert: --zone=us-west4-a --worker=all" in calls
    assert "--constraint constraints/newest.txt" in calls and "--python 3.11" in calls


def test_set_up_copies_the_scripts_own_checkout_and_leaves_no_module_of_an_earlier_commit(pod: Path, monkeypatch):
    home = pod / "host-0" / "bert_jax"
    (home / "train").mkdir()
    (home / "train" / "old.py").touch()
    (home / "runs").mkdir()  # of the user
    copies = 'case " $* " in *" scp "*) cp "$5" "$FAKE/host-0"; cp "$5" "$FAKE/host-1" ;; esac\n'
    executable(pod / "bin" / "gcloud", GCLOUD + copies)
    for host in ("host-0", "host-1"):
        executable(pod / host / ".local" / "bin" / "uv", "#!/bin/bash\n")
    executable(pod / "bin" / "python3", "#!/bin/bash\n")
    script = checkout(pod) / "launch" / "tpu_vm.sh"
    (pod / "elsewhere").mkdir()
    subprocess.run(["git", "init", "-q"], cwd=pod / "elsewhere", check=True)
    monkeypatch.chdir(pod / "elsewhere")  # another repository, without a commit
    set_up = on_pod(pod, script, "setup")
    assert set_up.returncode == 0, set_up.stderr
    for host in ("host-0", "host-1"):
        assert [path.name for path in (pod / host / "bert_jax" / "train").iterdir()] == ["new.py"]
    assert (home / "runs").exists()


def test_a_pod_is_asked_for_only_if_there_is_a_commit_to_copy_to_it(pod: Path):
    executable(pod / "bin" / "git", "#!/bin/bash\necho 'fatal: no such commit' >&2\nexit 128\n")
    ended = on_pod(pod, "queued_resource.sh", "configs/tiny.py")
    line = "cannot pack the last commit of this checkout, which the hosts get: fatal: no such commit\n"
    assert (ended.returncode, ended.stderr) == (2, line)
    assert not lines(pod / "calls")


def without_installing(pod: Path) -> None:
    """Has `setup` find a .venv and the archive on each host, and its installers do nothing."""
    for name in ("git", "python3", "tar"):
        executable(pod / "bin" / name, "#!/bin/bash\n")
    for host in ("host-0", "host-1"):
        executable(pod / host / ".local" / "bin" / "uv", "#!/bin/bash\n")


def test_a_pod_from_the_queue_is_asked_for_again_until_the_run_is_done(pod: Path):
    states = ["NONE", "PROVISIONING", "ACTIVE", "NET", "SUSPENDED", "NONE", "WAITING_FOR_RESOURCES", *["ACTIVE"] * 2000]
    (pod / "states").write_text("".join(f"{state}\n" for state in states))
    without_installing(pod)
    ended = on_pod(pod, "queued_resource.sh", "configs/tiny.py", "run=gs://b/run")
    assert ended.returncode == 0, ended.stderr
    assert "the run ended with exit code 0" in ended.stdout
    calls = [call for call in check_calls(pod) if call.endswith(("create", "delete"))]
    create, delete = "queued-resources create", "queued-resources delete"
    assert calls == [create, create, delete, create, delete]
    assert "not asked for; the next round" in ended.stderr  # when the network failed
    assert on_pod(pod, "queued_resource.sh").returncode == 2


def test_a_pod_that_vanished_from_the_queue_is_set_up_again_once_there_is_a_new_one(pod: Path):
    (pod / "states").write_text("\n".join(["NONE", "ACTIVE", "NONE", *["ACTIVE"] * 2000]) + "\n")
    without_installing(pod)
    for host in ("host-0", "host-1"):
        (pod / host / "bert_jax" / "codes").unlink()  # each run ends with 0: no restart, which would sleep too
    between_rounds = """#!/bin/bash
cd "$FAKE"
echo round >> rounds
[ "$(wc -l < rounds)" != 2 ] || for host in host-0 host-1; do
  until [ -s $host/run.code ]; do /bin/sleep 0.02; done; rm $host/run.code $host/run.pid; done
"""
    executable(pod / "bin" / "sleep", between_rounds)
    ended = on_pod(pod, "queued_resource.sh", "configs/tiny.py", "run=gs://b/run")
    assert ended.returncode == 0, ended.stderr
    calls = [call for call in check_calls(pod) if call.endswith(("create", "scp", "delete"))]
    create, copy, delete = "queued-resources create", "tpu-vm scp", "queued-resources delete"
    assert calls == [create, copy, create, copy, delete]


def test_a_pod_that_cannot_be_set_up_is_given_back(pod: Path):
    (pod / "states").write_text("\n".join(["NONE", *["ACTIVE"] * 2000]) + "\n")
    without_installing(pod)
    executable(pod / "bin" / "python3", "#!/bin/bash\nexit 1\n")
    ended = on_pod(pod, "queued_resource.sh", "configs/tiny.py")
    assert ended.returncode == 1
    assert ended.stderr.endswith("not started in 10 tries in a row: giving up\n")
    calls = check_calls(pod)
    assert calls.count("tpu-vm scp") == 10 and calls[-1] == "queued-resources delete"


def runs_last(pod: Path) -> None:
    """Has the program on each host go on until the file `go` is in its home."""
    waits = '#!/bin/bash\necho start >> starts\nwhile [ -d "$HOME" ] && ! [ -e "$HOME/go" ]; do /bin/sleep 0.05; done\n'
    for host in ("host-0", "host-1"):
        executable(pod / host / "bert_jax" / ".venv" / "bin" / "python", waits)


def test_the_queue_starts_the_run_on_a_host_that_was_started_anew(pod: Path):
    (pod / "states").write_text("ACTIVE\n" * 2000)
    without_installing(pod)
    runs_last(pod)
    between_rounds = """#!/bin/bash
cd "$FAKE"
echo round >> rounds
case $(wc -l < rounds) in
1) until [ -s host-1/bert_jax/starts ]; do /bin/sleep 0.02; done; echo "$$ anew" > host-1/run.pid ;;
3) touch host-0/go host-1/go ;;
esac
"""
    executable(pod / "bin" / "sleep", between_rounds)
    ended = on_pod(pod, "queued_resource.sh", "configs/tiny.py", "run=gs://b/run")
    assert ended.returncode == 0, ended.stderr
    assert wait_for_lines(pod / "host-1" / "run.code") == ["0"]
    assert lines(pod / "host-0" / "bert_jax" / "starts") == ["start"]
    assert lines(pod / "host-1" / "bert_jax" / "starts") == ["start"] * 2


@pytest.mark.parametrize("fault", ["ssh fails", "host 0 was started anew"])
def test_the_queue_sets_no_host_up_under_a_run(pod: Path, fault: str):
    (pod / "states").write_text("ACTIVE\n" * 2000)
    without_installing(pod)
    runs_last(pod)
    assert on_pod(pod, "tpu_vm.sh", "start", "configs/tiny.py").returncode == 0
    for host in ("host-0", "host-1"):
        assert wait_for_lines(pod / host / "bert_jax" / "starts") == ["start"]
    if fault == "ssh fails":
        once = 'case "$*" in *"echo yes"*) [ -e "$FAKE/failed" ] || { touch "$FAKE/failed"; exit 255; } ;; esac\n'
        executable(pod / "bin" / "gcloud", GCLOUD.replace("\n", f"\n{once}", 1))
    else:
        (pod / "host-0" / "run.pid").write_text("7 an-earlier-boot\n")
    between_rounds = """#!/bin/bash
cd "$FAKE"
echo round >> rounds
[ "$(wc -l < rounds)" != 4 ] || touch host-0/go host-1/go
"""
    executable(pod / "bin" / "sleep", between_rounds)
    ended = on_pod(pod, "queued_resource.sh", "configs/tiny.py")
    (pod / "host-0" / "go").touch()
    (pod / "host-1" / "go").touch()
    assert ended.returncode == 0, ended.stderr
    assert "tpu-vm scp" not in check_calls(pod)
    assert ("the hosts do not answer" in ended.stderr) == (fault == "ssh fails")
    assert lines(pod / "host-0" / "bert_jax" / "starts") == ["start"] * (1 if fault == "ssh fails" else 2)


# --- Slurm ---

# https://slurm.schedmd.com/sbatch.html
SBATCH = {
    "job-name", "nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "time", "signal", "requeue", "open-mode",
    "output",
}  # fmt: skip


def directives() -> dict[str, str]:
    found = re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?$", (LAUNCH / "slurm.sh").read_text(), re.MULTILINE)
    return dict(found)


def test_slurm_starts_a_process_for_each_gpu_and_warns_it_before_the_end():
    found = directives()
    assert set(found) <= SBATCH
    assert found["ntasks-per-node"] == found["gpus-per-node"]  # JAX gives each process the GPU of its local number
    (notice,) = re.findall(r"^TERM@(\d+)$", found["signal"])  # to the processes, not to the script
    text = (LAUNCH / "slurm.sh").read_text()
    (hung,) = re.findall(r"^srun .*--wait=(\d+) ", text, re.MULTILINE)
    # The first process may save for as long as it is given, and another hang from then on. Slurm is slow to kill.
    assert int(notice) >= Budgets().grace + int(hung) + 120
    assert text.rindex("#SBATCH") < text.index("\nset -u")  # directives after a command are not read


@pytest.mark.parametrize(("code", "again"), [(0, False), (2, False), (75, True), (134, True)])
def test_slurm_queues_what_was_stopped_again(tmp_path: Path, code: int, again: bool):
    executable(tmp_path / "bin" / "srun", f'#!/bin/bash\necho "$@" > {tmp_path}/srun\nexit {code}\n')
    executable(tmp_path / "bin" / "scontrol", f'#!/bin/bash\necho "$@" > {tmp_path}/scontrol\n')
    words = ["configs/tiny.py", "phases=((128, 64, 9),)"]
    variables = {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "8"}
    assert run([LAUNCH / "slurm.sh", *words], tmp_path, **variables).returncode == code
    assert lines(tmp_path / "srun")[0].endswith("train.pretrain configs/tiny.py phases=((128, 64, 9),)")
    assert "--cpus-per-task=8 " in lines(tmp_path / "srun")[0]
    (seconds,) = re.findall(r"--wait=(\d+) ", lines(tmp_path / "srun")[0])  # 0, without end, is srun's default
    assert int(seconds) > join_seconds() + 60
    assert lines(tmp_path / "scontrol") == (["requeue 7"] if again else [])
    (tmp_path / "scontrol").unlink(missing_ok=True)
    run([LAUNCH / "slurm.sh", *words], tmp_path, **variables, SLURM_RESTART_COUNT="50")
    assert not lines(tmp_path / "scontrol")


# --- GKE, SkyPilot ---


def test_the_jobset_asks_for_whole_slices_and_restarts_what_is_worth_it():
    jobset = yaml.safe_load((LAUNCH / "jobset.yaml").read_text())
    (slices,) = jobset["spec"]["replicatedJobs"]
    job = slices["template"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    chips = math.prod(int(size) for size in pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x"))
    on_host = container["resources"]["limits"]["google.com/tpu"]
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert job["parallelism"] == job["completions"] == chips / on_host
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["containerName"] == container["name"]
    assert set(rule["onExitCodes"]["values"]) == FINAL - {stopping.EXIT_DONE, stopping.EXIT_INTERRUPTED}
    assert pod["restartPolicy"] == "Never"  # what podFailurePolicy needs
    assert pod["terminationGracePeriodSeconds"] > Budgets().grace  # a run that cannot save ends by itself
    (policy,) = jobset["spec"]["failurePolicy"]["rules"]
    assert (policy["action"], policy["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    program, *words = container["args"]
    assert program == "train.pretrain"
    assert parse(words, "", PretrainConfig).run == "gs://BUCKET/runs/base"


def test_the_skypilot_task_names_a_config_and_restarts_what_is_worth_it():
    task = yaml.safe_load((LAUNCH / "skypilot.yaml").read_text())
    codes = task["resources"]["job_recovery"]["recover_on_exit_codes"]
    assert set(codes) == codes_in_the_guide()[0]
    variables = {"CONFIG": task["envs"]["CONFIG"], "BUCKET": "b"}
    printed = subprocess.run(
        ["bash", "-c", task["run"].replace(".venv/bin/python -m train.pretrain", "printf '%s\\n'")],
        env=os.environ | variables, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    launch = parse(printed, "", PretrainConfig)
    assert (launch.config.data, launch.run) == ("gs://b/data", "gs://b/runs/bert")
    subprocess.run(["bash", "-n", "-c", task["setup"]], check=True)


# --- the image ---


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]  # type: ignore[misc]


def test_the_image_holds_everything_before_it_starts():
    steps = instructions()
    assert steps[0][0] == "FROM" and "-slim" in steps[0][1]
    ran = [step for kind, step in steps if kind == "RUN"]
    assert any(".ci/install.py constraints/newest.txt" in step for step in ran)
    assert not any("pip install" in step for step in ran)  # nothing that the list's hashes do not cover
    entry = json.loads(dict(steps)["ENTRYPOINT"])  # a list: no shell between the engine's SIGTERM and Python
    command = json.loads(dict(steps)["CMD"])
    assert entry == ["python", "-m"] and (ROOT / f"{command[0].replace('.', '/')}.py").exists()


def test_the_image_gets_the_code_and_nothing_else():
    copied = [step.split()[:-1] for kind, step in instructions() if kind == "COPY"]
    sources = {source for step in copied for source in step}
    ignored = lines(ROOT / ".dockerignore")
    let_through = {line[1:] for line in ignored if line.startswith("!")}
    assert "*" in ignored and let_through == sources
    assert all((ROOT / source).exists() for source in sources)
    assert {"bert_jax", "train", "configs"} <= sources  # what `python -m train.pretrain configs/...` needs


# --- their own tools ---

TOOLS = Path(os.environ.get("BERT_JAX_LAUNCH_TOOLS", ""))
needs_tools = pytest.mark.skipif(not os.environ.get("BERT_JAX_LAUNCH_TOOLS"), reason="BERT_JAX_LAUNCH_TOOLS is not set")


@needs_tools
@pytest.mark.exhaustive
def test_shellcheck_finds_nothing():
    subprocess.run([TOOLS / "bin" / "shellcheck", *SCRIPTS], check=True)


@needs_tools
@pytest.mark.exhaustive
def test_hadolint_finds_nothing():
    subprocess.run([TOOLS / "bin" / "hadolint", ROOT / "Dockerfile"], check=True)


@needs_tools
@pytest.mark.exhaustive
def test_skypilot_reads_its_task(tmp_path: Path):
    code = (
        "import sys, sky; t = sky.Task.from_yaml_config(__import__('yaml').safe_load(open(sys.argv[1])), "
        "env_overrides=[('BUCKET', 'b')]); (r,) = t.resources; print([r.accelerators, r.use_spot, r.job_recovery])"
    )
    printed = subprocess.run(
        [TOOLS / "bin" / "python", "-c", code, LAUNCH / "skypilot.yaml"],
        env=os.environ | {"HOME": str(tmp_path)}, cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    accelerators, spot, recovery = ast.literal_eval(printed)
    assert accelerators == {"tpu-v5litepod-16": 1} and spot
    assert recovery["strategy"] == "EAGER_NEXT_REGION"


def closed(schema: Any) -> Any:
    """The schema with unknown fields refused, as an API server does that is asked for strict validation."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    inside = {name: closed(part) for name, part in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        inside.setdefault("additionalProperties", False)
    return inside


@needs_tools
@pytest.mark.exhaustive
def test_the_jobset_is_one_by_its_published_schema(tmp_path: Path):
    definition = yaml.load((TOOLS / "jobsets.yaml").read_text(), yaml.CSafeLoader)
    jobset = yaml.safe_load((LAUNCH / "jobset.yaml").read_text())
    (version,) = [v for v in definition["spec"]["versions"] if jobset["apiVersion"].endswith(f"/{v['name']}")]
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(closed(version["schema"]["openAPIV3Schema"])))
    code = "import sys, yaml, jsonschema; jsonschema.validate(*(yaml.safe_load(open(path)) for path in sys.argv[1:]))"

    def validate(content: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "jobset.json"
        path.write_text(json.dumps(content))
        command = [TOOLS / "bin" / "python", "-c", code, path, schema]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert validate(jobset).returncode == 0
    jobset["spec"]["failurePolicy"]["maxRestart"] = 3
    assert "'maxRestart' was unexpected" in validate(jobset).stderr
