"""The benchmarks, one file each: `fashion_mnist.py` is the dataset fashion-mnist, its SOURCE says all of it."""
