"""The compile cache: a program that was compiled before is read instead of compiled.

`lookup` asks it before a compile, `key` says what a compile depends on, `store` keeps programs.
"""
