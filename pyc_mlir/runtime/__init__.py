"""Running programs: devices, arrays, executables, arenas, guards, `Program`."""
