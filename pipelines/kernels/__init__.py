"""CPU kernels that PyC generates itself: a small language, and families of kernels written in it.

docs/kernels.md explains the language and one kernel line by line. Importing this package imports
nothing else.
"""
