"""What `python -m train.pretrain` is made of.

`job.py` is what the loop runs.
"""
