"""Memory planning on pyc IR and on bufferized linalg, for reading, tests and `pyc-opt`."""
