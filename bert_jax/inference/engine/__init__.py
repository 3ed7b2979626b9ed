"""The engine that every pipeline runs on: takes encoded texts, returns arrays in order, compiles few programs."""
