"""What the rollouts' API takes and shows."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from cluster.golden import MAX_GOLDEN_PROMPTS, GoldenPrompt
from cluster.rollout.rollout import Rollout


class NewRollout(BaseModel):
    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        json_schema_extra={
            "anyOf": [
                {"required": ["model"], "properties": {"model": {"type": "string"}}},
                {"required": ["revision"], "properties": {"revision": {"type": "string"}}},
            ]
        },
    )

    model: Annotated[str, Field(min_length=1, max_length=4096)] | None = Field(
        None,
        description="as `headrace serve --model`, on the launcher's machine; default: that which is served",
    )
    revision: Annotated[str, Field(pattern="^[0-9a-f]{4,64}(-[0-9a-f]{1,64})?$")] | None = Field(
        None, description="how the digest of the files there must begin"
    )
    golden: list[GoldenPrompt] = Field(
        [],
        max_length=MAX_GOLDEN_PROMPTS,
        description="what each new replica must answer; default: the prompts of the version that serves",
    )

    @model_validator(mode="after")
    def _names_a_version(self) -> NewRollout:
        if self.model is None and self.revision is None:
            raise PydanticCustomError("invalid_value", "give model, revision or both")
        return self


class RolloutView(Rollout, frozen=True):
    object: Literal["rollout"] = "rollout"


class RolloutList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: tuple[RolloutView, ...]


EXAMPLE = {
    "object": "rollout",
    "rollout_id": "ro-0123abcd",
    "created_at": 1796000000.0,
    "model": "org/model",
    "revision": "0123abcd",
    "num_golden": 0,
    "state": "running",
    "num_replicas": 4,
    "num_updated": 1,
    "steps": [{"at": 1796000001.0, "text": "a new replica serves"}],
    "error": None,
    "remedy": None,
    "ended_at": None,
}


def rollout_view(rollout: Rollout) -> RolloutView:
    return RolloutView(**msgspec.structs.asdict(rollout))
