"""`vllm serve` in a process of its own, with flags that make it compute what an engine of ours does."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil


@dataclass
class VllmServer:
    """Its process, and the address that it will listen at."""

    process: subprocess.Popen
    url: str
    log: Path

    @classmethod
    def started(cls, folder, name, dtype, log):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        held = {"backend": "xgrammar", "disable_any_whitespace": True}
        # `vllm serve` runs this module, and looks for a distribution called vllm, which the CPU build is not.
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
        command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", name]
        command += ["--dtype", dtype, "--max-model-len", "8192", "--max-num-seqs", "32", "--enforce-eager"]
        command += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192"]
        command += ["--kv-cache-memory-bytes", str(2**30), "--generation-config", "vllm"]
        command += ["--logprobs-mode", "processed_logprobs", "--structured-outputs-config", json.dumps(held)]
        env = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        with log.open("ab") as out:
            process = subprocess.Popen(command, env=env, stdout=out, stderr=out)
        return cls(process, f"http://127.0.0.1:{port}/v1", log)

    def ready(self):
        """Its url, once it answers."""
        end = time.monotonic() + 300
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            try:
                if httpx.get(f"{self.url}/models", timeout=5).is_success:
                    return self.url
            except httpx.TransportError:
                pass  # not listening yet
            time.sleep(0.3)
        raise AssertionError(f"not listening after minutes:\n{self.log.read_text()[-3000:]}")

    def family(self):
        """Its process and all below it."""
        top = psutil.Process(self.process.pid)
        return [top, *top.children(recursive=True)]

    def end(self):
        """Ends it and its processes. Twice is fine."""
        if self.process.poll() is None:
            family = self.family()
            self.process.send_signal(signal.SIGTERM)
            for one in psutil.wait_procs(family, timeout=20)[1]:
                one.kill()
            self.process.wait(20)
