"""Programs that try to get out of a sandbox without its proxy or its list of hosts; each attempt prints whether it `fails` or `PASSES`.

Arguments: an address and a port of this machine, the path of another thread's door, the name of an abstract socket.
"""

from typing import Final

_HEAD: Final = """
import ctypes, os, socket, sys, urllib.request
host, port, door, abstract = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
def attempt(name, act):
    try:
        act()
    except (OSError, ValueError):
        print(name, "fails")
    else:
        print(name, "PASSES")
def connect(family, address):
    with socket.socket(family) as client:
        client.settimeout(3)
        client.connect(address)
        client.sendall(b"x")
def send(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(b"x", address)
def ask_proxy(target):
    with socket.create_connection(("127.0.0.1", int(os.environ["ORION_EGRESS_PORT"])), 3) as client:
        client.sendall(f"CONNECT {target} HTTP/1.1\\r\\nHost: {target}\\r\\n\\r\\n".encode())
        if b" 200 " not in client.recv(4096):
            raise OSError("refused")
def open_url(variables, handlers):
    os.environ.update(variables)
    urllib.request.build_opener(*handlers).open(f"http://{host}:{port}/", timeout=3)
def make_ring():
    if ctypes.CDLL(None, use_errno=True).syscall(425, 8, ctypes.create_string_buffer(120)) < 0:
        raise OSError("refused")
"""
AROUND: Final = (
    _HEAD
    + """
attempt("IPv4", lambda: connect(socket.AF_INET, (host, port)))
attempt("IPv6", lambda: connect(socket.AF_INET6, ("2001:db8::1", port)))
attempt("DNS by UDP", lambda: send((host, 53)))
attempt("QUIC", lambda: send((host, port)))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt("packets", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt("a look-up", lambda: socket.getaddrinfo("example.com", 443))
attempt("an abstract socket", lambda: connect(socket.AF_UNIX, chr(0) + abstract))
attempt("the engine", lambda: connect(socket.AF_UNIX, "/var/run/docker.sock"))
"""
)
"""In any sandbox."""
PAST_PROXY: Final = (
    AROUND
    + """
attempt("no proxy", lambda: open_url({}, [urllib.request.ProxyHandler({})]))
attempt("NO_PROXY", lambda: open_url({"NO_PROXY": "*", "no_proxy": "*"}, []))
attempt("another door", lambda: connect(socket.AF_UNIX, door))
attempt("AF_VSOCK", lambda: socket.socket(40, socket.SOCK_STREAM))
attempt("io_uring", make_ring)
attempt("the proxy to an address", lambda: ask_proxy(f"{host}:{port}"))
attempt("the proxy to this machine", lambda: ask_proxy(f"localhost:{port}"))
"""
)
"""Where there is a proxy and a filter of system calls, too."""


def attempts_of(program: str) -> int:
    return program.count("\nattempt(")
