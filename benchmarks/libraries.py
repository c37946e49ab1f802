"""What libraries are told before they are used: by the program, and by the jobs that it starts elsewhere."""

import os


def settle() -> None:
    """Sets the environment that makes training fast and repeatable; what a user has set already stays."""
    settings = {
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "65536",  # kernels for every padded shape stay built
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # else products on a GPU are not repeatable
        "OPENCV_FOR_THREADS_NUM": "1",  # an image is too small to share, and OpenCV's threads would fight torch's
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)
