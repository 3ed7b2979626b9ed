"""What all training programs share: the start, the loop, the run directory; `log/`, and in `ending/` how a run ends.

Nothing here depends on what is trained.
"""
