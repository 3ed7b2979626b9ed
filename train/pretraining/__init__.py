"""The parts of `python -m train.pretrain`.

`job.py` is the job that the loop trains; `first_state.py` says where a run starts. `scoring/` has BLiMP, probes and
fine-tuning during a run, `sweep/` several runs from one command.
"""
