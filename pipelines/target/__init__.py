"""What PyC compiles for, and what work costs there."""
