"""What `python -m train.finetune` is made of.

`job.py` is what the loop runs, `tasks/` what can be learnt.
"""
