"""What crosses between the processes arrives as it was, or not at all."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from support.engines import Bench

from ramet.core.output import SequenceUpdate, TokenLogprobs
from ramet.engine.wire import Frames, Step, decode_event, frame

LOGPROBS = TokenLogprobs(3, -0.5, 2, np.array([4, 3], np.int32), np.array([-0.1, -np.inf], np.float32))


def crossed(update: SequenceUpdate) -> SequenceUpdate:
    (body,) = Frames().feed(frame(Step([update], Bench().engine.stats())))
    step = decode_event(body)
    assert isinstance(step, Step)
    return step.updates[0]


def test_an_update_with_logprobs_arrives_bit_for_bit() -> None:
    sent = SequenceUpdate("a", 7, 1, (3,), (LOGPROBS,), (LOGPROBS,), 16, 2.5, "stop", 3, "why")
    found = crossed(sent)
    for told, meant in ((found.logprobs, sent.logprobs), (found.prompt_logprobs, sent.prompt_logprobs)):
        for one, other in zip(told, meant, strict=True):
            assert (one.token_id, one.logprob, one.rank) == (other.token_id, other.logprob, other.rank)
            for array, expected in ((one.top_ids, other.top_ids), (one.top_logprobs, other.top_logprobs)):
                assert array.dtype == expected.dtype
                assert array.tobytes() == expected.tobytes()
    plain = {"logprobs": (), "prompt_logprobs": ()}
    assert msgspec.structs.asdict(found) | plain == msgspec.structs.asdict(sent) | plain


def test_an_array_of_another_type_is_not_sent() -> None:
    wide = TokenLogprobs(3, -0.5, 2, np.array([4], np.int64), np.array([-0.1], np.float32))  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="ndarray"):
        crossed(SequenceUpdate("a", 7, 0, (3,), (wide,)))


def test_half_an_array_is_no_event() -> None:
    body = frame(Step([SequenceUpdate("a", 7, 0, (3,), (LOGPROBS,))], Bench().engine.stats()))[4:]
    whole = msgspec.msgpack.decode(body)
    logprobs = whole["updates"][0]["logprobs"][0]
    logprobs["top_ids"] = logprobs["top_ids"][:-1]
    with pytest.raises(msgspec.ValidationError):
        decode_event(msgspec.msgpack.encode(whole))
