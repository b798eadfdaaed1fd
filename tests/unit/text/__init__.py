"""Units of nanoserve.text."""
