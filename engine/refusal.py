"""What can never be served is refused at once, with the numbers, instead of waiting for ever."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.request import Request

_MAX_TOKEN_ID = 2**31 - 1


class RequestRefused(Exception):
    """`code` is one of the API's error codes; `message` is fit for the client."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def check_fits(request: Request, config: EngineConfig) -> None:
    """Raises RequestRefused if `request` is malformed or cannot be served even alone.

    Counts prompt + max_tokens (at most `max_model_len`): a request whose prompt fits but whose
    answer cannot is refused here, not cut short later. All `n` answers have to fit one at a time.
    """
    _check_fields(request, config)
    num_prompt, max_tokens = len(request.prompt_token_ids), request.sampling.max_tokens
    if num_prompt + len(request.output_token_ids) + 1 > config.max_model_len:
        raise RequestRefused(
            "context_length_exceeded",
            f"prompt of {num_prompt} tokens leaves no room for an answer: "
            f"the context is {config.max_model_len} tokens",
        )
    num_tokens = min(num_prompt + max_tokens, config.max_model_len)
    # Each sibling beyond the first copies one block of the prompt when it starts.
    capacity = (config.num_blocks - request.n) * config.block_size
    if num_tokens > capacity:
        beside = f" beside {request.n} answers" if request.n > 1 else ""
        raise RequestRefused(
            "limit_never_satisfiable",
            f"prompt ({num_prompt} tokens) and max_tokens ({max_tokens}) need {num_tokens} slots: "
            f"the KV pool holds {max(0, capacity)}{beside}",
        )


def _check_fields(request: Request, config: EngineConfig) -> None:
    if not request.prompt_token_ids:
        raise RequestRefused("empty_prompt", "prompt must hold at least one token")
    for name, token_ids in (("prompt", request.prompt_token_ids), ("output", request.output_token_ids)):
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) <= _MAX_TOKEN_ID:
            raise RequestRefused("invalid_value", f"{name} token ids must be between 0 and {_MAX_TOKEN_ID}")
    if request.sampling.max_tokens <= len(request.output_token_ids):
        raise RequestRefused(
            "invalid_value",
            f"max_tokens must be at least {len(request.output_token_ids) + 1}, "
            f"not {request.sampling.max_tokens}",
        )
    if not 1 <= request.n <= config.max_num_seqs:
        raise RequestRefused(
            "invalid_value",
            f"n must be between 1 and {config.max_num_seqs}, the requests that run at once, not {request.n}",
        )
    if request.n > 1 and request.output_token_ids:
        raise RequestRefused("invalid_value", "n must be 1 where output tokens are resumed")
    if len(request.block_hashes) > len(request.prompt_token_ids) // config.block_size:
        raise RequestRefused(
            "invalid_value",
            f"block_hashes must be at most {len(request.prompt_token_ids) // config.block_size}, "
            f"one for each full block of the prompt, not {len(request.block_hashes)}",
        )
