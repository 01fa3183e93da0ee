"""Object stores on the loopback interface, for tests and benchmarks.

Every server listens on a free port of 127.0.0.1, keeps its files in a folder of its own, and dies with the process that
started it. One module for each kind of store; `process` starts and ends programs.
"""
