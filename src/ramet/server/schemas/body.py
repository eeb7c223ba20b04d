"""From a request's bytes to its struct: the types of every field are checked here, the values where they are used."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from ramet.errors import InvalidRequest

__all__ = ["MAX_ITEMS", "MAX_TOOLS", "decode_body", "ignored_header"]

T = TypeVar("T", bound=msgspec.Struct)

MAX_ITEMS = 4096  # of a conversation: messages, or what Responses has for them
MAX_TOOLS = 128
_LARGE_BYTES = 1 << 16
_MOST = {  # of each in a body: decoding that many takes some 20 ms, for which nobody else is served
    "lists": (b"[", 50_000),
    "objects": (b"{", 50_000),
    "names of fields": (b'":', 60_000),
    "commas": (b",", 200_000),  # more than any prompt has token ids
}
_WHERE = re.compile(r"^(?P<what>.*?) - at `\$\.?(?P<where>.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(\w+)`$")
_NO_HEADER = re.compile(r"[^A-Za-z0-9_.\-\[\]]")
_MAX_NAMED = 16
_MAX_NAME_CHARS = 60


def decode_body(body: bytes, kind: type[T]) -> tuple[T, list[str]]:
    """The body as a ``kind``, and the names of fields that it has and ``kind`` does not know.

    Raises ``InvalidRequest`` naming the field for what is not JSON, not an object, of a wrong type or without a field it needs.
    """
    if len(body) > _LARGE_BYTES:
        _check_counts(body)
    try:
        request = msgspec.json.decode(body, type=kind)
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deep") from None
    known = set(kind.__struct_encode_fields__)
    return request, [name for name in fields if name not in known]


def _check_counts(body: bytes) -> None:
    """Before anything is decoded. What stands in texts counts as well: no prompt of so many fits a model's context."""
    for what, (sign, most) in _MOST.items():
        if (count := body.count(sign)) > most:
            raise InvalidRequest(f"the body has {count:,} {what}, over {most:,}; send less at a time")


def ignored_header(names: Sequence[str]) -> dict[str, str]:
    """The header that names the fields which were ignored, as far as a header can; none where there are none."""
    if not names:
        return {}
    told = [_NO_HEADER.sub("?", name[:_MAX_NAME_CHARS]) for name in names[:_MAX_NAMED]]
    if len(names) > _MAX_NAMED:
        told.append(f"and {len(names) - _MAX_NAMED} more")
    return {"x-ramet-ignored": ", ".join(told)}


def _invalid(message: str) -> InvalidRequest:
    """msgspec says "Expected `int`, got `str` - at `$.max_tokens`"."""
    found = _WHERE.match(message)
    if (missing := _MISSING.match(message)) is not None:
        return InvalidRequest(f"{missing[1]} is missing", missing[1])
    if found is None:
        return InvalidRequest(_lowered(message))
    where = found["where"].removeprefix("[...]").lstrip(".") or None
    return InvalidRequest(f"{where or 'the body'}: {_lowered(found['what'])}", where)


def _lowered(message: str) -> str:
    text = message.replace("`", "")
    return text[:1].lower() + text[1:]
