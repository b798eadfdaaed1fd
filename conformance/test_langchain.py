"""LangChain's standard integration tests for chat models, through langchain-openai."""

import os
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests


class TestNanoserve(ChatModelIntegrationTests):
    """What the default model's 135M parameters can do, with a template that knows tools."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        kind: type[BaseChatModel] = ChatOpenAI
        return kind

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "base_url": f"{os.environ['CONFORMANCE_URL']}/v1",
            "api_key": "none",
            "model": os.environ["CONFORMANCE_MODEL"],
            "stream_usage": True,
            "max_retries": 0,
            "timeout": 600,
            "max_tokens": 200,
            "frequency_penalty": 0.3,  # a small model's strings end sooner
            # The tests expect one call, and ChatOpenAI leaves a temperature of 0 out.
            "extra_body": {"parallel_tool_calls": False, "temperature": 0},
        }

    @property
    def supports_json_mode(self) -> bool:
        return True

    @pytest.mark.xfail(reason="the model leaves out a key that only the prompt asks for")
    def test_json_mode(self, model: BaseChatModel) -> None:
        super().test_json_mode(model)

    @pytest.mark.parametrize("model", [{}, {"output_version": "v1"}], indirect=True)
    @pytest.mark.xfail(reason="the model calls no tool of its own accord")
    def test_agent_loop(self, model: BaseChatModel) -> None:
        super().test_agent_loop(model)
