"""The compile cache: was this very program compiled before?

`front` is the way through it, `key` says what a compile depends on, `store` keeps programs on disk.
"""
