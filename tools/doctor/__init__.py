"""`pyc-doctor`: facts about a machine and an installation, and checks on them."""
