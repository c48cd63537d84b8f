"""A server of compiled programs: the open inference protocol v2 over HTTP."""
