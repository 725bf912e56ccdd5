"""Runs `sordino` commands in forked children: real processes and exit codes for one import of torch.

One JSON object a line in: args, cwd, home (the SORDINO_HOME of the caller), and perhaps env (more variables), fsize (a
limit on file sizes in bytes, as a full disk) or kill (SIGKILL as soon as `file` has that many lines, `delay` seconds
later). One line out: rc, stdout, stderr.
"""

import gc
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path


def child(job, out, err):
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.chdir(job["cwd"])
    os.environ |= job.get("env", {}) | {"SORDINO_HOME": job["home"]}
    if job.get("fsize") is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (job["fsize"], resource.RLIM_INFINITY))
    sys.argv = ["sordino", *job["args"]]
    code = 0
    try:
        from sordino.cli.main import main

        main()
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def lines(path):
    try:
        return Path(path).read_bytes().count(b"\n")
    except OSError:
        return 0


def one(job):
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            child(job, out.fileno(), err.fileno())
        status = None
        if job.get("kill") is not None:
            while status is None and lines(job["file"]) < job["kill"]:
                ended, found = os.waitpid(pid, os.WNOHANG)
                status = found if ended else None
                time.sleep(0.002)
            if status is None:
                time.sleep(job.get("delay", 0.0))
                os.kill(pid, signal.SIGKILL)
        if status is None:
            status = os.waitpid(pid, 0)[1]
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
        return {"rc": os.waitstatus_to_exitcode(status), "stdout": texts[0], "stderr": texts[1]}


def warm_up():
    """A first run imports and compiles what all later ones share."""
    import torch

    import sordino

    with tempfile.TemporaryDirectory() as out:
        os.environ["SORDINO_HOME"] = out
        pair = (torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64))
        sordino.train(torch.nn.Linear(2, 2), [pair], test=pair, rounds=1, out=out, device="cpu", seed=0)


def serve():
    import sordino.cli.compare
    import sordino.cli.main
    import sordino.cli.methods
    import sordino.cli.run  # noqa: F401 (what every child will need)

    warm_up()
    gc.freeze()  # children neither look through what is here already nor copy it
    for line in sys.stdin:
        print(json.dumps(one(json.loads(line))), flush=True)


class Server:
    def __init__(self):
        env = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1"}
        command = [sys.executable, __file__]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def __call__(self, *args, cwd, **keys):
        job = {"args": [str(a) for a in args], "cwd": str(cwd), "home": os.environ["SORDINO_HOME"]}
        self.process.stdin.write(json.dumps(job | keys) + "\n")
        self.process.stdin.flush()
        found = json.loads(self.process.stdout.readline())
        return subprocess.CompletedProcess(args, found["rc"], found["stdout"], found["stderr"])

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


if __name__ == "__main__":
    serve()
