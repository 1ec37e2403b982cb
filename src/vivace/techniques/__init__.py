"""Every published trick, one file each, by slot. `index.py` holds the tables of names."""
