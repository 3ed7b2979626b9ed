"""Save, verify, restore and delete checkpoints; an incomplete one never counts. The only folder that imports Orbax."""
