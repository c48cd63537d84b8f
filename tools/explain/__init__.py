"""`pyc-explain`: facts of a program as text and as an HTML page."""
