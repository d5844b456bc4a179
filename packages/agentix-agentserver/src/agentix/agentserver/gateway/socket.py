"""WebSockets: what their frames carry, and how one that breaks the rules is closed."""

from aiohttp import ClientWebSocketResponse, WSCloseCode, WSMessage, WSMsgType, web

from agentix.agentserver.errors import AgentServerError

__all__ = ["GatewayError", "frame_bytes", "refuse"]


class GatewayError(AgentServerError):
    """A gateway can not be opened, or another organism can not be reached."""


def frame_bytes(message: WSMessage) -> bytes | None:
    """Gives what a frame carries; `None` at the end of the connection."""
    match message.type:
        case WSMsgType.TEXT:
            return str(message.data).encode(errors="surrogatepass")
        case WSMsgType.BINARY:
            return bytes(message.data)
    return None


async def refuse(socket: web.WebSocketResponse | ClientWebSocketResponse, reason: str) -> None:
    """Closes a connection for a breach of the rules."""
    await socket.close(code=WSCloseCode.POLICY_VIOLATION, message=reason.encode())
