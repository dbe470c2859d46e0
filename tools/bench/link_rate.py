"""link_rate.py take PORT | link_rate.py give ADDRESS PORT: what a link carries, for tools/bench_object.sh.

Eight connections send zeros for four seconds. The side that takes them prints MiB/s.
"""
import socket
import sys
import threading
import time

CONNECTIONS, SECONDS, PIECE = 8, 4, 1 << 18


def in_threads(work, args):
    threads = [threading.Thread(target=work, args=a) for a in args]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def take(port):
    taken = [0] * CONNECTIONS

    def receive(i, connection):
        while n := len(connection.recv(PIECE)):
            taken[i] += n

    server = socket.create_server(("0.0.0.0", port))
    connections = [server.accept()[0] for _ in range(CONNECTIONS)]
    since = time.time()
    in_threads(receive, enumerate(connections))
    print("%.1f" % (sum(taken) / (time.time() - since) / 2**20))


def give(address, port):
    def send(_):
        with socket.create_connection((address, port)) as connection:
            end = time.time() + SECONDS
            while time.time() < end:
                connection.sendall(bytes(PIECE))
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)  # all of it has arrived

    in_threads(send, [(i,) for i in range(CONNECTIONS)])


if sys.argv[1:2] == ["take"]:
    take(int(sys.argv[2]))
else:
    give(sys.argv[2], int(sys.argv[3]))
