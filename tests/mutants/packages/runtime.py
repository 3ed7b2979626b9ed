"""Mutants of what the processes of a job do together, and of the compiler's options."""

from tests.mutants.mutant import Mutant

CLUSTER = "bert_jax/runtime/cluster.py"
CHANNEL = "bert_jax/runtime/control_channel.py"
HOSTS = "bert_jax/runtime/hosts.py"
COMPILER = "bert_jax/runtime/compiler.py"
OF_COMPILER = "tests/runtime/test_compiler.py"
REMEMBER = "bert_jax/runtime/remember.py"
OF_REMEMBER = "tests/runtime/test_remember.py"
OF_JOINING = "tests/train/hosts/test_joining.py"
OF_CHANNEL = "tests/runtime/test_control_channel.py"
OF_AGREEING = "tests/train/hosts/test_agreeing.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        CLUSTER,
        "if not text.isdecimal() or int(text) < at_least:",
        "if not text.isdecimal():",
        "a job of no processes is taken for a job",
        (f"{OF_JOINING}::test_settings_that_are_wrong_or_incomplete_are_one_line",),
    ),
    Mutant(
        CLUSTER,
        'on_tpu = "TPU_SKIP_MDS_QUERY" not in os.environ',
        "on_tpu = False",
        "with JAX_PLATFORMS=cpu one host of a pod waits for the others",
        (f"{OF_JOINING}::test_one_process_of_a_pod_can_be_alone",),
    ),
    Mutant(
        CLUSTER,
        "return self._options[name][1] if name in self._options else os.environ.get(name) or None",
        "return os.environ.get(name) or (self._options[name][1] if name in self._options else None)",
        "a variable overrides the command line",
        (f"{OF_JOINING}::test_options_come_before_variables_and_these_before_what_is_found",),
    ),
    Mutant(
        CHANNEL,
        "if twin is not None or not 0 < number < self.count:",
        "if not 0 < number < self.count:",
        "two processes with one number join as one",
        (f"{OF_CHANNEL}::test_processes_that_were_told_different_things_all_end",),
    ),
    Mutant(
        CHANNEL,
        'self._send_all({"end": code, "line": line})  # the first process tells the others',
        "pass",
        "the end of one process reaches only the first",
        (f"{OF_CHANNEL}::test_the_end_of_one_is_the_end_of_all_with_its_code_and_line",),
    ),
    Mutant(
        CHANNEL,
        "peer.silent += passed",
        "peer.silent += 0",
        "a process that hangs keeps the others waiting",
        (f"{OF_CHANNEL}::test_a_silent_process_counts_as_lost_after_the_heartbeat",),
    ),
    Mutant(
        CHANNEL,
        "self._next_beat = now + self._heartbeat / 4",
        "self._next_beat = now + self._heartbeat * 4",
        "a process that is busy counts as lost",
        (f"{OF_CHANNEL}::test_processes_that_are_busy_for_longer_than_the_heartbeat_stay",),
    ),
    Mutant(
        HOSTS,
        "on_first_process(compare)",
        "None",
        "processes with different configs train together",
        (f"{OF_AGREEING}::test_the_first_process_decides_for_all",),
    ),
    Mutant(
        COMPILER,
        "if name not in named}, devices)",
        "}, devices)",
        "the environment cannot change the compiler's options",
        (f"{OF_COMPILER}::test_what_the_environment_names_stays_as_it_says",),
    ),
    Mutant(
        COMPILER,
        'if len(devices) < 2 or devices[0].platform != "tpu":',
        "if len(devices) < 2:",
        "CPUs get a TPU's compiler options",
        (f"{OF_COMPILER}::test_several_tpus_have_options_and_other_devices_have_none",),
    ),
    Mutant(
        REMEMBER,
        "return known(*args, **kwargs)",
        "return function(*args, **kwargs)",
        "each run makes its programs anew",
        ("tests/train/pretraining/test_pretrain.py::test_three_resumes_equal_never_having_stopped",),
    ),
    Mutant(
        REMEMBER,
        "hash((args, *kwargs.values()))",
        "hash(args)",
        "an array in a keyword is refused",
        (f"{OF_REMEMBER}::test_what_has_no_hash_is_computed_each_time",),
    ),
)
