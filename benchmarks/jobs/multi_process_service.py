"""NVIDIA's Multi-Process Service (MPS): kernels of several processes run on a GPU at once; else they take turns."""

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress

from hmerbench.benchmarks.printing import err_console

CONTROL, PIPE, LOG = "nvidia-cuda-mps-control", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
PROBE = "import torch; torch.zeros(1, device='cuda')"
SECONDS = 60  # within which it must start, and a process use a GPU through it


class MultiProcessService:
    """A service of one's own, for the processes started while it runs; one that is there already is left alone.

    It changes no setting of the GPU. Where it cannot be started or used, a line says so, and nothing depends on it.
    """

    def __init__(self) -> None:
        self.control, self.folder = shutil.which(CONTROL), ""
        if PIPE in os.environ or not self.control:
            if not self.control:
                err_console.print(f"without {CONTROL}, runs take turns on the GPU")
            return
        self.folder = tempfile.mkdtemp(prefix="mps")
        os.environ |= {PIPE: self.folder, LOG: self.folder}
        try:
            subprocess.run(
                [self.control, "-d"], check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS
            )
            subprocess.run([sys.executable, "-c", PROBE], check=True, capture_output=True, timeout=SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            err_console.print(f"{CONTROL} cannot be used ({type(error).__name__}): runs take turns on the GPU")
            self.stop()

    def stop(self) -> None:
        """End the service."""
        if self.folder and self.control:
            with suppress(OSError, subprocess.SubprocessError):
                subprocess.run([self.control], input=b"quit\n", capture_output=True, timeout=SECONDS)
            shutil.rmtree(self.folder, ignore_errors=True)
            os.environ.pop(PIPE, None)
            os.environ.pop(LOG, None)
            self.folder = ""
