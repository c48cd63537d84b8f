"""The pass pyc-fuse: groups of ops that should become one kernel."""
