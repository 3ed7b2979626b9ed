"""What makes a run's programs makes them once for equal arguments."""

import jax
import numpy as np

from bert_jax.runtime.remember import remember
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer
from bert_jax.training.schedules import make_schedule


def test_equal_arguments_give_the_same_object_and_others_another():
    first = make_optimizer(OptimizerConfig(learning_rate=1e-3), batches=((5, 64),))
    assert make_optimizer(OptimizerConfig(learning_rate=1e-3), batches=((5, 64),)) is first
    assert make_optimizer(OptimizerConfig(learning_rate=2e-3), batches=((5, 64),)) is not first
    assert make_optimizer(OptimizerConfig(learning_rate=1e-3), batches=((6, 64),)) is not first


def test_what_has_no_hash_is_computed_each_time():
    calls = []

    @remember
    def add(numbers: object, plus: object = 0) -> int:
        calls.append((numbers, plus))
        return len(calls)

    assert [add(1), add(1), add(1, plus=2), add([1]), add([1]), add(1, plus=np.ones(1))] == [1, 1, 2, 3, 4, 5]


def test_a_traced_rate_is_that_of_its_own_trace():
    config = OptimizerConfig(warmup_steps=0, total_steps=10, schedule="constant")
    rate = jax.jit(lambda peak: make_schedule(config, peak=peak)(3))
    assert [float(rate(peak)) for peak in (1.0, 2.0)] == [1.0, 2.0]
    assert float(jax.jit(lambda peak: 3 * make_schedule(config, peak=peak)(3))(1.0)) == 3.0
