"""What all training programs share: start and stop, the loop, the run directory, the log.

Nothing here depends on what is trained.
"""
