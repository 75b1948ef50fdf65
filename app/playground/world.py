"""Everything outside Orion, on one address: Slack look-alike, offline model, trace receiver."""

from collections.abc import Mapping

from fastapi import FastAPI

from app.playground.model import ModelPace, create_model_app
from app.playground.slack_app import create_slack_app
from app.playground.slack_types import LookalikeConfig
from app.playground.traces import (
    PLAYGROUND_PUBLIC_KEY,
    PLAYGROUND_SECRET_KEY,
    create_trace_router,
)

OFFLINE_MODEL_KEY = "sk-ant-playground-offline-model"
OFFLINE_OPENAI_KEY = "sk-playground-offline-model"
OFFLINE_GEMINI_KEY = "AIza-playground-offline-model"
OWN_KEYS_SECRET = "playground-secret-for-keys-of-its-people"  # noqa: S105 - of people who are not real


def create_world(config: LookalikeConfig, *, pace: ModelPace | None = None) -> FastAPI:
    """One app: the Slack page at `/`, its API below `/api/`, traces at `/traces`, the model below `/model`."""
    world = create_slack_app(config)
    world.include_router(create_trace_router())
    world.mount("/model", create_model_app(pace=pace))
    return world


def orion_environment(world_url: str, config: LookalikeConfig) -> Mapping[str, str]:
    """Settings that point an Orion at this world over HTTP events."""
    return {
        "SLACK_BOT_TOKEN": config.bot_token,
        "SLACK_SIGNING_SECRET": config.signing_secret,
        "SLACK_API_URL": f"{world_url}/api/",
        "ANTHROPIC_BASE_URL": f"{world_url}/model",
        "ANTHROPIC_API_KEY": OFFLINE_MODEL_KEY,
        "OPENAI_BASE_URL": f"{world_url}/model",
        "OPENAI_API_KEY": OFFLINE_OPENAI_KEY,
        "GEMINI_BASE_URL": f"{world_url}/model",
        "GEMINI_API_KEY": OFFLINE_GEMINI_KEY,
        "LANGFUSE_PUBLIC_KEY": PLAYGROUND_PUBLIC_KEY,
        "LANGFUSE_SECRET_KEY": PLAYGROUND_SECRET_KEY,
        "LANGFUSE_BASE_URL": world_url,
    }
