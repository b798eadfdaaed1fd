"""Wires everything, once: boot and the offline LLM."""
