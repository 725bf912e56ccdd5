"""A stand-in for a site's daemon: answers every request with "echo" and the request."""

import os
import socket
import sys


def read(line: socket.socket, length: int) -> bytes:
    out = b""
    while len(out) < length and (piece := line.recv(length - len(out))):
        out += piece
    return out


os.umask(0)
with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
    door.bind(sys.argv[1])
    door.listen()
    while True:
        line, _ = door.accept()
        with line:
            head = read(line, 8)
            if len(head) == 8:
                answer = b"echo " + read(line, int.from_bytes(head, "big"))
                line.sendall(len(answer).to_bytes(8, "big") + answer)
