"""Starts children, hands them their work, watches them and reports their death; knows no plugin and no model.

launch.py starts and watches a child; child.py is what runs in it; channel.py is the pipe between them;
fork_server.py forks children from a warm process; shutdown.py, threads.py and logs.py are signals, thread
counts and logging for every process.
"""
