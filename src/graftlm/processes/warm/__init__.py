"""A warm parent: a process with the slow imports behind it that lends forks of itself to its user's later commands.

place.py is the private folder where a parent is found; starting.py starts one, parent.py is its process, lender.py
answers its clients, and client.py asks it; circumstances.py and loaded_files.py tell what would make a fork differ
from a fresh child. It knows no plugin and no model: what a parent holds is prepared by functions named to it.
"""
