"""How a run ends: exit codes, signals, and what ends a run that hangs."""
