"""The front's end of the line to an engine's process; nothing it does waits."""

import asyncio
import contextlib
import socket
from collections.abc import Callable

from fdjax.serve.apart.wire import AT_ONCE, Message, Messages


class Line:
    """Messages to and from an engine's process.

    Args:
        connection: to it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._messages = Messages()
        self._come: list[Message] = []
        self._unsent = bytearray()
        self._loop: asyncio.AbstractEventLoop | None = None

    def first(self) -> Message:
        """Waits for the first message; what has come with it, `read` gives.

        Raises:
            EOFError: the other end is closed.
        """
        while not self._come:
            data = self._socket.recv(AT_ONCE)
            if not data:
                raise EOFError
            self._come = self._messages.add(data)
        return self._come.pop(0)

    def attach(self, on_messages: Callable[[], None]) -> None:
        """Lets the running loop call when something has come; the one before is over.

        Raises:
            RuntimeError: another loop that still runs is called already.
        """
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None and not self._loop.is_closed():
            raise RuntimeError("an engine in another process serves one event loop")
        self._loop = loop
        loop.add_reader(self._socket.fileno(), on_messages)

    def detach(self) -> None:
        """Has the loop call no more; on that loop."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.remove_reader(self._socket.fileno())
            loop.remove_writer(self._socket.fileno())

    def read(self) -> list[Message]:
        """What has come, which may be no whole message.

        Raises:
            EOFError: the other end is closed.
        """
        try:
            data = self._socket.recv(AT_ONCE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError as error:
            raise EOFError from error
        if not data:
            raise EOFError
        come, self._come = self._come, []
        return come + self._messages.add(data)

    def send(self, message: Message) -> None:
        """Sends a message; what the other end does not take yet, the loop sends."""
        is_idle = not self._unsent
        self._unsent += message.packed()
        if is_idle:
            self._send_some()

    def close(self) -> None:
        """Ends it at once, from any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(self._give_up)
                return
        self._socket.close()

    def _give_up(self) -> None:
        self.detach()
        self._socket.close()

    def _send_some(self) -> None:
        try:
            sent = self._socket.send(self._unsent, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        except OSError:  # it has ended, as whoever reads finds out
            sent = len(self._unsent)
        del self._unsent[:sent]
        if self._loop is None:
            return
        if self._unsent:
            self._loop.add_writer(self._socket.fileno(), self._send_some)
        elif sent:
            self._loop.remove_writer(self._socket.fileno())
