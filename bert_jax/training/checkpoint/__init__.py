"""Checkpoints that are whole or not there: saved, hashed, verified, retained.

The only folder that imports Orbax.
"""
