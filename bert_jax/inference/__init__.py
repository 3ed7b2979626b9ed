"""Runs models on texts, with a few compiled shapes and plain Python results.

Start with `pipeline`.
"""
