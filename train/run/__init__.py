"""What every training program shares: the loop, the run directory, the log, how it stops.

Nothing here knows what is trained.
"""
