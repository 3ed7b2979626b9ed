"""The programs, run from a checkout: prepare text, pretrain, fine-tune, and a demo."""

from train.run.ending.signals import end_at_signals, loads_as_a_program

if loads_as_a_program():
    end_at_signals()
