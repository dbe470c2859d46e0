"""slow_cable.py A B MS MBIT: a network cable between two new TUN devices A and B, in the place of tc's netem.

Each packet takes MS milliseconds and leaves after those before it at MBIT megabits per second. Prints a line when the
devices are there; they vanish when this program ends. Packets beyond a queue of 64 MiB in a direction are dropped.
"""
import collections
import fcntl
import os
import select
import struct
import sys
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
MOST_BYTES, LARGEST_PACKET = 64 << 20, 65536


def device(name):
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return fd


class Direction:
    def __init__(self, source, sink, delay, bytes_per_second):
        self.source, self.sink, self.delay, self.rate = source, sink, delay, bytes_per_second
        self.queue, self.queued, self.free_at = collections.deque(), 0, 0.0

    def take(self, now):
        try:
            packet = os.read(self.source, LARGEST_PACKET)
        except OSError:  # the device is down
            return
        if self.queued + len(packet) > MOST_BYTES:
            return
        self.free_at = max(self.free_at, now) + len(packet) / self.rate
        self.queue.append((self.free_at + self.delay, packet))
        self.queued += len(packet)

    def deliver(self, now):
        while self.queue and self.queue[0][0] <= now:
            packet = self.queue.popleft()[1]
            self.queued -= len(packet)
            try:
                os.write(self.sink, packet)
            except OSError:  # the device is down, or its queue is full: the packet is lost
                pass


def main():
    first, second = device(sys.argv[1]), device(sys.argv[2])
    delay, rate = float(sys.argv[3]) / 1e3, float(sys.argv[4]) * 1e6 / 8
    ways = [Direction(first, second, delay, rate), Direction(second, first, delay, rate)]
    print("ready", flush=True)
    while True:
        due = min((w.queue[0][0] for w in ways if w.queue), default=None)
        wait = None if due is None else max(0.0, due - time.monotonic())
        readable = select.select([first, second], [], [], wait)[0]
        for way in ways:
            if way.source in readable:
                way.take(time.monotonic())
            way.deliver(time.monotonic())


main()
