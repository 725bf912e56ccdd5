"""The benchmarks, one file each: `fashion_mnist.py` describes the dataset fashion-mnist in its SOURCE."""
