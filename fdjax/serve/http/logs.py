"""The server's log, as lines for people or as JSON for programs."""

import contextvars
import json
import logging
import time
from typing import Any, Literal, override

LogFormat = Literal["text", "json"]

# Not with the records of requests: the engine's process logs, too, and spares itself
# FastAPI, a quarter of its imports.
REQUEST_ID: contextvars.ContextVar[str] = contextvars.ContextVar("fdjax_request_id")


class JsonFormatter(logging.Formatter):
    """One object a line: time (UTC), level, logger, message, and fields."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        entry: dict[str, Any] = {
            "time": f"{_utc(record)}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := REQUEST_ID.get(None):
            entry["request_id"] = request_id
        entry |= _fields(record)
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class TextFormatter(logging.Formatter):
    """Time (UTC), level, message, and fields as `name=value`."""

    @override
    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line without a traceback."""
        words = [f"{_utc(record)}Z", f"{record.levelname:<7}", record.message]
        fields = _fields(record)
        if record.levelno >= logging.WARNING and (request_id := REQUEST_ID.get(None)):
            fields.setdefault("request_id", request_id)
        # A path may hold line breaks: as JSON they cannot begin a line of their own.
        words += [f"{name}={_value(value)}" for name, value in fields.items()]
        return " ".join(words)


def log_config(log_format: LogFormat) -> dict[str, Any]:
    """For `logging.config.dictConfig`: all that is logged, to stderr."""
    formatter = JsonFormatter if log_format == "json" else TextFormatter
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"lines": {"()": formatter}},
        "handlers": {
            "stderr": {"class": "logging.StreamHandler", "formatter": "lines"}
        },
        "root": {"level": "WARNING", "handlers": ["stderr"]},
        "loggers": {"fdjax": {"level": "INFO"}, "uvicorn": {"level": "INFO"}},
    }


def _utc(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """What was given as `extra={"fields": ...}`."""
    return dict(getattr(record, "fields", {}))


def _value(value: object) -> str:
    text = str(value)
    plain = text.isascii() and text.isprintable() and " " not in text
    return text if plain else json.dumps(text)
