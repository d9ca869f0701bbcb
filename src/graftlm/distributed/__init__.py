"""Process groups and their collectives; one rank needs neither and pays for neither.

It does not know platforms: the worker passes it the backend's name and the communicator's class path.
"""
