"""The parts of `python -m train.finetune`.

`job.py` is the job that the loop trains; `tasks/` has the tasks.
"""
