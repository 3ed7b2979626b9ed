"""The compiler's options of a step: set for several TPUs, overridden by the environment, only those that it knows."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from bert_jax.runtime import compiler
from bert_jax.runtime.compiler import TPU_OPTIONS, compiler_options, known_options
from train.run.environment import environment


@dataclass(frozen=True)
class Device:
    platform: str


@pytest.fixture
def all_known(monkeypatch):
    def known(options: Any, devices: Any) -> dict[str, str]:
        return dict(options)

    monkeypatch.setattr(compiler, "known_options", known)
    for name in compiler.VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_several_tpus_have_options_and_other_devices_have_none(all_known):
    assert compiler_options([Device("tpu")] * 4) == TPU_OPTIONS
    for devices in ([Device("tpu")], [Device("cpu")] * 4, [Device("gpu")] * 4):
        assert compiler_options(devices) == {}


@pytest.mark.parametrize("variable", ["LIBTPU_INIT_ARGS", "XLA_FLAGS"])
def test_what_the_environment_names_stays_as_it_says(all_known, monkeypatch, variable: str):
    name, *others = TPU_OPTIONS
    monkeypatch.setenv(variable, f"--xla_dump_to=here --{name}=false")
    assert list(compiler_options([Device("tpu")] * 4)) == others
    assert compiler.flags() == {variable: f"--xla_dump_to=here --{name}=false"}


def test_a_run_records_its_options_and_flags(all_known, monkeypatch):
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_impure_oom_fast_exit_threshold=-1")
    tpu = SimpleNamespace(platform="tpu", device_kind="TPU v5 lite")
    monkeypatch.setattr(jax, "devices", lambda: [tpu] * 4)
    found = environment()
    assert found["compiler_options"] == TPU_OPTIONS
    assert found["compiler_flags"] == {"LIBTPU_INIT_ARGS": "--xla_tpu_impure_oom_fast_exit_threshold=-1"}


def test_options_that_this_compiler_does_not_have_are_left_out():
    options = {"xla_of_another_version": "true", "xla_backend_optimization_level": "0", "xla_of_a_third": "8"}
    known = known_options(options, jax.devices())
    assert known == {"xla_backend_optimization_level": "0"}
    assert jax.jit(lambda x: 2 * x, compiler_options=known)(3.0) == 6.0


def test_a_value_that_is_wrong_is_an_error():
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_backend_optimization_level"):
        known_options({"xla_backend_optimization_level": "high"}, jax.devices())
