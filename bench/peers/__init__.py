"""Other servers on this machine, installed and measured beside nanoserve: `python -m bench.peers`."""
