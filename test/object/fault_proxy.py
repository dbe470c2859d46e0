#!/usr/bin/env python3
"""fault_proxy.py: stands between cltrain and an object store and disturbs a share of the requests.

    fault_proxy.py --store 127.0.0.1:8333 --share 0.1 --seed 7 [--kinds drop_before,stall,...] [--stall 2]

prints "listening on 127.0.0.1:PORT" and passes requests on, byte for byte: the Host header stays that of the
proxy, so signatures hold. What it disturbs follows from the seed and the order of the requests. At SIGTERM it
prints "fault KIND COUNT" for every kind of --kinds and "requests COUNT", and ends.

Kinds. "before": the store never sees the request; "after": it does, and its response is lost.
    drop_before, drop_after       the connection is reset, or closed, without a response
    error_before, error_after     500 InternalError
    slow_down                     503 SlowDown before, every second one with Retry-After: 1
    stall                         nothing happens for --stall seconds: before the response or in its middle
    short_body                    a body ends before its Content-Length (needs a body of 2 bytes)
    reset                         the connection is reset after a part of the response
    ok_error                      200 with an <Error> in the body: completing an upload, before or after
    reorder                       the keys of a page of a list come in another order
    expired                       400 ExpiredToken before, once until the same request has had its response
Kinds that do not pass, off by default:
    expired_for_good, denied      400 ExpiredToken, 403 AccessDenied before
    full                          507 XMinioStorageFull before: a PUT or a POST
    wrong_bytes                   one bit of the body of an object is another one: nothing in plain S3 tells, so
                                  only a reader that has checksums may be tested with it
--only TEXT disturbs only requests whose request line contains TEXT; --once none twice in a row.
"""
import argparse
import asyncio
import collections
import random
import signal
import socket
import struct

KINDS = ("drop_before", "drop_after", "error_before", "error_after", "slow_down", "stall", "short_body", "reset",
         "ok_error", "reorder", "expired", "expired_for_good", "denied", "full", "wrong_bytes")
OFF = ("expired_for_good", "denied", "full", "wrong_bytes")  # by default
MAX_HEAD = 65536


class Message:
    """A request or a response: its head as it came, its body, the bytes of both."""

    def __init__(self, head, body, framing=b""):
        self.head, self.body, self.framing = head, body, framing or body

    def line(self):
        return self.head.split(b"\r\n", 1)[0].decode("latin-1")

    def header(self, name):
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.strip().lower() == name:
                return value.strip()
        return None

    def with_body(self, body):
        """The same head with another body and its length."""
        lines = [x for x in self.head.rstrip(b"\r\n").split(b"\r\n")
                 if not x.lower().startswith((b"content-length:", b"transfer-encoding:"))]
        lines.append(b"Content-Length: %d" % len(body))
        return Message(b"\r\n".join(lines) + b"\r\n\r\n", body)

    def bytes(self):
        return self.head + self.framing


async def read_chunked(reader):
    """The body of a chunked message, and its bytes as they came."""
    body, framing = b"", b""
    while True:
        line = await reader.readuntil(b"\n")
        size = int(line.split(b";")[0], 16)
        data = await reader.readexactly(size + 2) if size else b""
        framing += line + data
        body += data[:-2]
        if size == 0:
            while line not in (b"\r\n", b"\n"):
                line = await reader.readuntil(b"\n")
                framing += line
            return body, framing


async def read_message(reader, has_body=True):
    message = Message(await reader.readuntil(b"\r\n\r\n"), b"")
    length = message.header(b"content-length")
    line = message.line()
    if not has_body or (line.startswith("HTTP/") and line.split(" ")[1].startswith(("1", "204", "304"))):
        return message
    if (message.header(b"transfer-encoding") or b"").lower() == b"chunked":
        message.body, message.framing = await read_chunked(reader)
    elif length is not None:
        message.body = message.framing = await reader.readexactly(int(length))
    elif line.startswith("HTTP/"):
        message.body = message.framing = await reader.read(-1)
    return message


def error(status, code, extra=b""):
    xml = b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>%s</Code><Message>injected</Message></Error>' % code
    return Message(b"HTTP/1.1 %s\r\nContent-Type: application/xml\r\n%sContent-Length: %d\r\n\r\n"
                   % (status, extra, len(xml)), xml)


def abort(writer):
    """Resets the connection."""
    sock = writer.get_extra_info("socket")
    if sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class Proxy:
    def __init__(self, options):
        self.options = options
        self.random = random.Random(options.seed)
        self.counts = collections.Counter()
        self.last = {}  # of a request (method, target): what was done to it the last time
        self.renewed = set()  # requests that got `expired` and no undisturbed response since

    # --- what is possible ---

    def possible(self, request):
        method, target = request.line().split(" ")[:2]
        query = target.partition("?")[2]
        complete = method == "POST" and "uploadId=" in query
        kinds = set(self.options.kinds) - {"ok_error", "reorder", "wrong_bytes", "full"}
        if complete:
            kinds.add("ok_error")
        if method in ("PUT", "POST"):
            kinds.add("full")
        if method == "GET" and "list-type=2" in query:
            kinds.add("reorder")
        if method == "GET" and not query and target.count("/") > 1:
            kinds.add("wrong_bytes")
        if self.call_of(request) in self.renewed:
            kinds.discard("expired")
        if self.last.get((method, target)) and self.options.once:
            kinds.clear()
        if method == "HEAD":
            kinds.discard("short_body")
        return sorted(kinds & set(self.options.kinds))

    def choose(self, request):
        kind = self.draw(request)
        self.last[tuple(request.line().split(" ")[:2])] = kind
        if kind == "expired":
            self.renewed.add(self.call_of(request))
        elif not kind:
            self.renewed.discard(self.call_of(request))
        return kind

    @staticmethod
    def call_of(request):
        """The same for all attempts of one call: a repeated read begins later in its range, and ends where it did."""
        end = (request.header(b"range") or b"").rpartition(b"-")[2]
        return (*request.line().split(" ")[:2], end)

    def draw(self, request):
        if self.options.only not in request.line() or self.random.random() >= self.options.share:
            return None
        kinds = self.possible(request)
        rare = [k for k in kinds if k in ("ok_error", "reorder")]  # few requests can have them
        return self.random.choice(rare if rare and self.random.random() < 0.5 else kinds) if kinds else None

    # --- one request ---

    async def forward(self, request):
        reader, writer = await asyncio.open_connection(*self.options.store, limit=MAX_HEAD)
        try:
            writer.write(request.bytes())
            await writer.drain()
            has_body = not request.line().startswith("HEAD ")
            while True:
                response = await read_message(reader, has_body)
                if not response.line().split(" ")[1].startswith("1"):
                    return response
        finally:
            writer.close()

    def early(self, kind, request):
        """The response to a request that the store never sees; None: there is none of this kind."""
        if kind == "error_before":
            return error(b"500 Internal Server Error", b"InternalError")
        if kind == "slow_down":
            again = b"Retry-After: 1\r\n" if self.random.random() < 0.5 else b""
            return error(b"503 Slow Down", b"SlowDown", again)
        if kind == "expired":
            return error(b"400 Bad Request", b"ExpiredToken")
        if kind == "expired_for_good":
            return error(b"400 Bad Request", b"ExpiredToken")
        if kind == "full":
            return error(b"507 Insufficient Storage", b"XMinioStorageFull")
        if kind == "denied":
            return error(b"403 Forbidden", b"AccessDenied")
        if kind == "ok_error" and self.random.random() < 0.5:
            return error(b"200 OK", b"InternalError")
        return None

    def changed(self, kind, response):
        """The response that is sent instead; the same one if there is nothing to change."""
        if kind == "error_after":
            return error(b"500 Internal Server Error", b"InternalError")
        if kind == "ok_error":
            return error(b"200 OK", b"InternalError")
        ok = response.line().split(" ")[1].startswith("2")
        if kind == "reorder" and ok and response.body.count(b"<Contents>") > 1:
            begin, end = response.body.index(b"<Contents>"), response.body.rindex(b"</Contents>") + len(b"</Contents>")
            items = [x + b"</Contents>" for x in response.body[begin:end].split(b"</Contents>")[:-1]]
            self.random.shuffle(items)
            return response.with_body(response.body[:begin] + b"".join(items) + response.body[end:])
        if kind == "wrong_bytes" and ok and response.body:
            body = bytearray(response.body)
            body[self.random.randrange(len(body))] ^= 1 << self.random.randrange(8)
            return response.with_body(bytes(body))
        return response

    async def send(self, kind, response, request, writer):
        """Sends the response with its fault. False: the connection is at its end."""
        data = response.head if request.line().startswith("HEAD ") else response.bytes()
        if kind == "stall":
            part = self.random.choice((0, self.random.randrange(len(data))))
            writer.write(data[:part])
            await writer.drain()
            await asyncio.sleep(self.options.stall)
            data = data[part:]
        elif kind == "short_body" and len(response.framing) > 1:
            writer.write(data[:-self.random.randrange(1, len(response.framing))])
            await writer.drain()
            return False
        elif kind == "reset":
            writer.write(data[:self.random.randrange(len(data))])
            await writer.drain()
            abort(writer)
            return False
        writer.write(data)
        await writer.drain()
        return (request.header(b"connection") or b"").lower() != b"close" and (
            response.header(b"connection") or b"").lower() != b"close"

    async def one(self, reader, writer):
        request = Message(await reader.readuntil(b"\r\n\r\n"), b"")
        if (request.header(b"expect") or b"").lower() == b"100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if request.header(b"content-length"):
            request.body = request.framing = await reader.readexactly(int(request.header(b"content-length")))
        elif request.header(b"transfer-encoding"):
            request.body, request.framing = await read_chunked(reader)
        self.counts["requests"] += 1
        kind = self.choose(request)
        if kind == "drop_before":
            return self.drop(kind, writer)
        response = self.early(kind, request)
        if response is None:
            try:
                plain = await self.forward(request)
            except (OSError, asyncio.IncompleteReadError):  # the store is away: so is the proxy
                abort(writer)
                return False
            if kind == "drop_after":
                return self.drop(kind, writer)
            response = self.changed(kind, plain)
            if response is plain and kind in ("reorder", "wrong_bytes"):
                kind = None
        if kind == "short_body" and len(response.framing) < 2:
            kind = None
        if kind:
            self.counts[kind] += 1
        return await self.send(kind, response, request, writer)

    def drop(self, kind, writer):
        self.counts[kind] += 1
        if self.random.random() < 0.5:
            abort(writer)
        return False

    async def serve(self, reader, writer):
        try:
            while await self.one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--store", required=True)
    p.add_argument("--port", type=int, default=0)
    p.add_argument("--share", type=float, default=0.1)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--stall", type=float, default=2)
    p.add_argument("--only", default="")
    p.add_argument("--once", action="store_true")
    p.add_argument("--kinds", default=",".join(k for k in KINDS if k not in OFF))
    options = p.parse_args()
    host, port = options.store.removeprefix("http://").split(":")
    options.store = host, int(port)
    options.kinds = [k for k in options.kinds.split(",") if k]
    unknown = set(options.kinds) - set(KINDS)
    if unknown:
        p.error(f"unknown kinds: {', '.join(sorted(unknown))}")
    return options


async def main():
    options = parse()
    proxy = Proxy(options)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", options.port, limit=MAX_HEAD)
    print("listening on 127.0.0.1:%d" % server.sockets[0].getsockname()[1], flush=True)
    end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    await end.wait()
    server.close()
    for kind in options.kinds:
        print("fault", kind, proxy.counts[kind])
    print("requests", proxy.counts["requests"], flush=True)


if __name__ == "__main__":
    asyncio.run(main())
