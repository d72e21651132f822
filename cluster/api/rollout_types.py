"""What the rollouts' API takes and shows."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from cluster.golden import MAX_GOLDEN_PROMPTS, GoldenPrompt
from cluster.rollout.rollout import Rollout


class NewRollout(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)

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


def rollout_view(rollout: Rollout) -> dict[str, Any]:
    return {"object": "rollout", **msgspec.to_builtins(rollout)}
