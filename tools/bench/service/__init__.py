"""Programs in service: servers beside a peer's under load, soaks and faults."""
