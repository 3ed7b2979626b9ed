"""Encoded texts in, arrays out in their order, by few compiled programs.

What every pipeline runs on.
"""
