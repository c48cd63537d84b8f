"""The common part of the command lines, and their drivers."""
