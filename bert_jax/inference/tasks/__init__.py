"""One file a pipeline, and what they share.

A new pipeline subclasses `TaskModel` and gets a line in `bert_jax/inference/pipeline.py`.
"""
