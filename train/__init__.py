"""The programs, run from a checkout: prepare text, pretrain, fine-tune, and a demo."""

import bert_jax  # noqa: F401 - refuses Windows, where the next line would fail for want of a signal
from train.run.ending.signals import end_at_signals, loads_as_a_program

if loads_as_a_program():
    end_at_signals()
