"""A stand-in for NVIDIA's libnvidia-ml.so.1, and the states it tells of: see README.md."""
