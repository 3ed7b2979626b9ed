"""The parts of `python -m train.pretrain`.

`job.py` is the job that the loop trains; `start.py` says where a run starts.
"""
