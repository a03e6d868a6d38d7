"""recovery.conf: the settings, declared once, and the file format they are read from."""
