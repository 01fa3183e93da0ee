"""Servers on the loopback interface, for tests, benchmarks and the demo.

Every server listens on a free port of 127.0.0.1 and has a separate folder. It dies with the process that started it.
Each kind of store has a module; `process` starts and ends programs.
"""
