"""From a request's bytes to its struct: the types of every field are checked here, the values where they are used."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from ramet.errors import InvalidRequest, shown

__all__ = ["decode_body"]

T = TypeVar("T", bound=msgspec.Struct)

_LARGE_BYTES = 1 << 16
_MAX_CONTAINERS = 50_000  # lists and objects: decoding that many takes some 20 ms, for which nobody else is served
_WHERE = re.compile(r"^(?P<what>.*?) - at `\$\.?(?P<where>.*)`$", re.DOTALL)


def decode_body(body: bytes, kind: type[T]) -> tuple[T, list[str]]:
    """The body as a ``kind``, and the names of fields that it has and ``kind`` does not know.

    Raises ``InvalidRequest`` naming the field for what is not JSON, not an object, of a wrong type or without a field it needs.
    """
    if len(body) > _LARGE_BYTES and (count := body.count(b"{") + body.count(b"[")) > _MAX_CONTAINERS:
        raise InvalidRequest(f"the body has {count:,} braces and brackets, over {_MAX_CONTAINERS:,}; send less at a time")
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
    return request, [shown(name, 60) for name in fields if name not in known]


def _invalid(message: str) -> InvalidRequest:
    """msgspec says "Expected `int`, got `str` - at `$.max_tokens`"."""
    found = _WHERE.match(message)
    if found is None:
        return InvalidRequest(_lowered(message))
    where = found["where"].removeprefix("[...]").lstrip(".") or None
    return InvalidRequest(f"{where or 'the body'}: {_lowered(found['what'])}", where)


def _lowered(message: str) -> str:
    text = message.replace("`", "")
    return text[:1].lower() + text[1:]
