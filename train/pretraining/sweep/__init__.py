"""`sweep=`: several pretraining runs from one command, in turn or side by side in one program."""
