"""What runs on compute nodes: the collector and what it reads. Standard library and pynvml only, and no RPC."""
